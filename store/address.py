"""The address of the store, from ``--store`` or ``MILLWHEEL_STORE``.

The URL of a Postgres that the user runs, or a directory with an embedded one (default:
``.millwheel``). Every text made from an address hides secrets; only ``open`` gives the full URL.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlencode

import psycopg
from psycopg import conninfo, pq

from millwheel.errors import UsageError
from millwheel.store import embedded

VARIABLE = "MILLWHEEL_STORE"
DEFAULT_DIRECTORY = Path(".millwheel")
HIDDEN = "***"

KEYWORDS = re.compile(
    r"\s*(?:host|hostaddr|port|dbname|user|password|passfile|service|sslmode|options)\s*=",
    re.IGNORECASE,
)
"""The beginning of a libpq keyword string, even if the rest of it is wrong."""

URL_LIKE = re.compile(r"\s*(?:[^./~\s][^/]*//|[^/]*@|\S*://|//\S*@)|\s+postgres", re.IGNORECASE)
"""Mistyped URLs that are no likely names of directories: ``postgres//host/x``, ``me@host/x``,
``://host/x``."""

HOST_AND_PORT = re.compile(r"(?:[\w.-]+|\[[0-9a-f:.]+\]):\d{1,5}(?:/[\w.-]*)?", re.IGNORECASE)

_ACCEPTED = """Accepted are:
  postgresql://user@host:5432/database   a Postgres (15 or later) that you run; postgres:// too
  .millwheel, /srv/wheel, ./a:b          a directory, for an embedded Postgres in it"""


@dataclass(frozen=True)
class StoreAddress:
    """Exactly one of ``url`` and ``directory`` is set. ``str()`` and ``repr()`` show no
    password."""

    url: str | None = field(default=None, repr=False)
    directory: Path | None = None

    def __post_init__(self) -> None:
        assert (self.url is None) != (self.directory is None)

    @classmethod
    def parse(
        cls, text: str | None = None, environment: Mapping[str, str] | None = None
    ) -> StoreAddress:
        """Parse ``text`` (the option), or ``MILLWHEEL_STORE``; the default is ``.millwheel``.

        The message of a `UsageError` repeats nothing that may be a secret.
        """
        source = "--store"
        if text is None:
            source = VARIABLE
            text = (os.environ if environment is None else environment).get(VARIABLE) or None
        if text is None:
            return cls(directory=DEFAULT_DIRECTORY)
        if not text.strip() or "\0" in text:
            raise UsageError(f"{source} names no store. {_ACCEPTED}")
        if re.match(r"postgres(ql)?://", text, re.IGNORECASE):
            scheme, _, rest = text.partition("://")
            return cls(url=_checked(f"{scheme.lower()}://{rest}", source))
        if HOST_AND_PORT.fullmatch(text) is not None:
            url = f"postgresql://USER@{text}" + ("" if "/" in text else "/DATABASE")
            raise UsageError(
                f"{source} is a host and a port, without the rest of a URL: write {url}. A "
                f"directory of that name is written with ./ in front. {_ACCEPTED}"
            )
        # Before any of it is shown: what is before the first ":" is never a secret.
        if (scheme_like := re.match(r"([a-z][a-z0-9+.-]*):", text, re.IGNORECASE)) is not None:
            hint = ""
            if scheme_like[1].lower().startswith("postgres"):
                hint = " Write it as postgresql://…, without a driver's name."
            elif scheme_like[1].lower() == "file":
                hint = " Write the path alone."
            raise UsageError(
                f"{source} is no address of a store: {scheme_like[1]}:…{hint} {_ACCEPTED}"
            )
        if KEYWORDS.match(text) is not None:
            raise UsageError(
                f"{source} is a libpq keyword string (host=… dbname=…): write it as a URL, "
                "postgresql://user@host:5432/dbname. A directory of that name is written with ./ "
                f"in front. {_ACCEPTED}"
            )
        if URL_LIKE.match(text) is not None:
            raise UsageError(
                f"{source} looks like a mistyped URL: a Postgres URL begins with postgresql:// and "
                "nothing before it. A directory of that name is written with ./ in front. "
                f"{_ACCEPTED}"
            )
        try:
            return cls(directory=Path(text).expanduser())
        except RuntimeError as error:  # ~name of an unknown user
            raise UsageError(f"{source} cannot be made a path: {error}. {_ACCEPTED}") from error

    @property
    def embedded(self) -> bool:
        return self.directory is not None

    def open(self) -> str:
        """Blocks, for some seconds in a new directory. A URL is returned unchanged, without a
        connection. Errors as ``embedded.start``."""
        if self.directory is not None:
            return embedded.start(self.directory).url
        assert self.url is not None
        return self.url

    def redacted(self) -> str:
        """Passwords and other secrets are ``***``, in the user part and in the query. The rest may
        be in another spelling."""
        if self.url is None:
            return str(self.directory)
        return _redacted(self.url)

    def __str__(self) -> str:
        return self.redacted()

    def __repr__(self) -> str:
        return f"StoreAddress({self.redacted()!r})"


def _checked(url: str, source: str) -> str:
    try:
        given = conninfo.conninfo_to_dict(url)
    except psycopg.Error:
        # libpq's message quotes the part that it cannot read, which may be the password; so
        # neither the message nor the exception is passed on.
        given = None
    if given is not None and not _misread(url, given):
        return url
    raise UsageError(
        f"{source} starts like a Postgres URL, but libpq cannot read it; it is not shown, as it "
        "may hold a password. Look for an unknown parameter after '?', a port that is no "
        "number, or a reserved character (: / @ ? # [ ] %) in the user, password or database "
        "that is not written as %XX."
    )


def _misread(url: str, given: Mapping[str, object]) -> bool:
    """Whether libpq took a part of an unescaped password for a port, host or database.

    It notices that only when it connects, but messages would show the part before.
    """
    hosts = str(given.get("host") or "").split(",")
    ports = str(given.get("port") or "").split(",")
    return (
        any(port and not port.isdecimal() for port in ports)  # postgresql://me:pass/word@…
        or any("@" in host[1:] for host in hosts)  # me:pass@word@…; "@name" is a socket
        or re.match(r"\w+://[^@/]*/[^?]*@", url) is not None  # me:123/word@…
    )


def _redacted(url: str) -> str:
    given: dict[str, str] = {}
    for option in pq.Conninfo.parse(url.encode()):
        if option.val is not None:
            # libpq itself marks the options a program should not display.
            secret = option.dispchar == b"*" or b"password" in option.keyword
            given[option.keyword.decode()] = HIDDEN if secret else option.val.decode()
    user = quote(given.pop("user", ""), safe="")
    if "password" in given:
        user += f":{given.pop('password')}"
    hosts = given.get("host", "").split(",")
    ports = given.get("port", "").split(",")
    place = ""
    # Sockets (paths) can only be written in the query; so can ports for other than the hosts.
    if all(re.fullmatch(r"[\w.:%-]+", host) for host in hosts) and len(ports) in (1, len(hosts)):
        ports = ports * len(hosts) if len(ports) == 1 else ports
        place = ",".join(
            (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")
            for host, port in zip(hosts, ports, strict=True)
        )
        given.pop("host", None)
        given.pop("port", None)
    database = quote(given.pop("dbname", ""), safe="")
    query = urlencode(given, quote_via=quote, safe="/*,")
    return (
        "postgresql://"
        + (f"{user}@" if user else "")
        + place
        + (f"/{database}" if database else "")
        + (f"?{query}" if query else "")
    )
