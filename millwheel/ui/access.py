"""The viewers of the pages, and their levels.

A viewer has a level: `none`, `look`, or `mend`, as the roles of a pipeline (decision 61). It comes
from

* a token, sent as ``Authorization: Bearer TOKEN``, or as the password of basic authentication,
  with the name for the log of operators as the user's;
* a header of a proxy that authenticates people, from the addresses of that proxy only;
* nothing, on a loopback address that is asked for by its own name: then all viewers are guests.

The environment has the tokens, since arguments are visible to all users of a machine.
"""

from __future__ import annotations

import base64
import binascii
import enum
import hmac
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from millwheel.errors import UsageError
from millwheel.services.http_access import tokens_of

LOOK_TOKENS = "MILLWHEEL_UI_LOOK_TOKENS"
MEND_TOKENS = "MILLWHEEL_UI_MEND_TOKENS"

NAME_CHARACTERS = 100
"""Most characters of a viewer's name."""


class Level(enum.IntEnum):
    NONE = 0
    LOOK = 1
    MEND = 2


def level_of(name: str, where: str) -> Level:
    """A level by its name in small letters; `UsageError`, which says where it stands, for
    others."""
    for level in Level:
        if level.name.lower() == name:
            return level
    known = ", ".join(level.name.lower() for level in Level)
    raise UsageError(f"{where}: {name!r} is no level: {known}")


@dataclass(frozen=True)
class Viewer:
    """The sender of a request."""

    name: str
    """As it stands in the log of operators."""
    level: Level


NOBODY = Viewer("", Level.NONE)


@dataclass(frozen=True)
class Proxy:
    """A proxy that authenticates people, and names them in a header."""

    addresses: tuple[IPv4Network | IPv6Network, ...]
    header: str = "x-forwarded-user"
    """In small letters."""
    menders: frozenset[str] = frozenset()
    """Names of the users with the level `mend`; the others have `look`."""

    @classmethod
    def parse(cls, addresses: str, header: str, menders: str) -> Proxy:
        """Addresses and names are separated by commas. `UsageError` for a wrong address."""
        try:
            networks = tuple(ip_network(each.strip()) for each in addresses.split(","))
        except ValueError as error:
            raise UsageError(
                f"--proxy {addresses!r}: {error}. Give addresses or networks, as in "
                "10.0.0.7,10.1.0.0/16"
            ) from error
        names = frozenset(name.strip() for name in menders.split(",") if name.strip())
        return cls(networks, header.strip().lower(), names)

    def viewer(self, client: str, headers: Mapping[str, str]) -> Viewer:
        name = _utf_8(headers.get(self.header, "")).strip()
        if not name or not self._is_from(client):
            return NOBODY
        level = Level.MEND if name in self.menders else Level.LOOK
        return Viewer(name_in_log(name), level)

    def _is_from(self, client: str) -> bool:
        try:
            address = ip_address(client)
        except ValueError:  # a socket of this machine has no address
            return False
        if isinstance(address, IPv6Address):  # of a socket that listens to both families
            address = address.ipv4_mapped or address
        return any(address in network for network in self.addresses)


Host = Callable[[str, Mapping[str, str]], Viewer | None]
"""Takes the client's address and the headers, with names in small letters."""


@dataclass(frozen=True)
class ViewerAccess:
    """The ways in; the first one that knows a viewer counts."""

    guests: Viewer = NOBODY
    """The viewer of a request without a name."""
    look_tokens: tuple[str, ...] = field(default=(), repr=False)
    mend_tokens: tuple[str, ...] = field(default=(), repr=False)
    proxy: Proxy | None = None
    host: Host | None = None
    """Asked first: an application that knows its users."""

    @classmethod
    def from_environment(
        cls,
        *,
        guests: Viewer = NOBODY,
        proxy: Proxy | None = None,
        host: Host | None = None,
    ) -> ViewerAccess:
        """`UsageError` if a variable is set to nothing."""
        look, mend = tokens_of(LOOK_TOKENS), tokens_of(MEND_TOKENS)
        if look or mend or proxy is not None:
            guests = NOBODY
        return cls(guests, look, mend, proxy, host)

    @property
    def is_open(self) -> bool:
        """Whether guests may look."""
        return self.guests.level > Level.NONE

    @property
    def asks_for_password(self) -> bool:
        return bool(self.look_tokens or self.mend_tokens)

    def viewer(self, client: str, headers: Mapping[str, str]) -> Viewer:
        """The viewer of a request. Names of headers are in small letters."""
        found = self._named(client, headers)
        if found.level == Level.NONE and self.is_open and asked_by_loopback_name(headers):
            return self.guests
        return found

    def _named(self, client: str, headers: Mapping[str, str]) -> Viewer:
        if self.host is not None and (found := self.host(client, headers)) is not None:
            return found
        if self.proxy is not None:
            found = self.proxy.viewer(client, headers)
            if found.level > Level.NONE:
                return found
        return self._with_token(headers.get("authorization", ""))

    def _with_token(self, authorization: str) -> Viewer:
        scheme, _, sent = authorization.partition(" ")
        name, token = "", sent.strip()
        if scheme.lower() == "basic":
            name, token = _name_and_password(token)
        elif scheme.lower() != "bearer":
            return NOBODY
        may_mend, may_look = (
            _is_one_of(token, self.mend_tokens),
            _is_one_of(token, self.look_tokens),
        )
        if may_mend:
            return Viewer(name or "token", Level.MEND)
        return Viewer(name or "token", Level.LOOK) if may_look else NOBODY


def asked_by_loopback_name(headers: Mapping[str, str]) -> bool:
    """Whether a request names this machine as a browser on it does.

    A page of a foreign site that has its name lead to this machine asks by that name, never by an
    address.
    """
    host = headers.get("host", "").lower()
    name = host[: host.rfind(":")] if host.rpartition(":")[2].isdigit() else host
    try:
        return name == "localhost" or ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def one_of_each(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Headers by name; the values of one that is sent twice stand together, as the standard has it,
    so that no part of them is taken for the whole."""
    found: dict[str, str] = {}
    for name, value in headers:
        name = name.lower()
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def name_in_log(name: str) -> str:
    """A viewer's name as it may stand in the log: of limited length, and on one line."""
    found = "".join(each if each.isprintable() else "\ufffd" for each in name)
    return found if len(found) <= NAME_CHARACTERS else f"{found[:NAME_CHARACTERS]}…"


def is_from_another_site(headers: Mapping[str, str], *, changes: bool) -> bool:
    """Whether a page of another origin has made a browser send this request.

    A link of another site may lead here, but no other request of its pages is answered.
    """
    site = headers.get("sec-fetch-site")
    if site in ("same-origin", "none"):
        return False
    if site is not None:
        is_link = headers.get("sec-fetch-mode") == "navigate"
        in_frame = headers.get("sec-fetch-dest", "document") != "document"
        return changes or not is_link or in_frame
    origin = headers.get("origin")
    return origin is not None and not _is_own(origin, headers)  # None: a program, or a plain look


def may_be_led_by_another_site(headers: Mapping[str, str]) -> bool:
    """Whether a link of another origin can have led a browser here.

    Over plain HTTP, except from this machine, browsers say only which page they come from, and a
    foreign page can hide that. Programs do not call themselves Mozilla.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    referer = headers.get("referer")
    if referer is not None:
        return not _is_own(referer, headers)
    return "mozilla/" in headers.get("user-agent", "").lower()


def _is_own(url: str, headers: Mapping[str, str]) -> bool:
    """Whether a URL is of the origin that was asked."""
    return url.partition("://")[2].partition("/")[0] == headers.get("host", "")


def _utf_8(header: str) -> str:
    """A header's text, which comes as if it were Latin-1."""
    try:
        return header.encode("latin-1").decode()
    except UnicodeError:
        return header


def _name_and_password(sent: str) -> tuple[str, str]:
    try:
        name, _, password = base64.b64decode(sent, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return "", ""
    return name_in_log(name), password


def _is_one_of(token: str, tokens: tuple[str, ...]) -> bool:
    found = [hmac.compare_digest(token.encode(), one.encode()) for one in tokens]
    return any(found)
