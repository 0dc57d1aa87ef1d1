"""Reads a request: who sends it, to which stream, and which records it has.

Everything is checked before anything is sent, so a request is taken as a whole or refused as a whole.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from millwheel.inbox import Inbox
from millwheel.streams import Stream

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

BODY_SECONDS = 30.0
"""Longest wait for a request's body."""

JSON = "application/json"
NDJSON = ("application/x-ndjson", "application/jsonl", "application/x-jsonlines")

MOST_ID = 255
"""Most characters of an id."""


@dataclass(frozen=True)
class Target:
    """A stream that takes records."""

    stream: Stream[Any]
    inbox: Inbox


@dataclass
class Sending:
    """The records of one request."""

    stream: str
    records: list[bytes]
    """JSON."""
    ids: list[str | None] = field(default_factory=list)
    batch: str | None = None
    """The id of the whole, from the header Idempotency-Key."""

    @property
    def is_idempotent(self) -> bool:
        """Whether a repeat has no second effect."""
        return self.batch is not None or None not in self.ids


class RequestRefused(Exception):
    """The request is answered with an error; nothing of it was sent.

    Args:
        status: HTTP status.
        message: what is wrong, and what to do.
        more: further members of the answer.
        headers: headers of the answer.
    """

    def __init__(
        self, status: int, message: str, headers: dict[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}
        self.more = more


class ClientGone(Exception):
    """The client closed the connection before its request was complete."""


class RequestReader:
    """Reads requests to some streams.

    Args:
        targets: by the streams' names.
        tokens: bearer tokens, one of which a request must have; none: no token is asked for.
    """

    def __init__(self, targets: dict[str, Target], tokens: Collection[str]) -> None:
        self._targets = targets
        self._tokens = [token.encode() for token in tokens]

    async def read(self, scope: Scope, receive: Receive) -> Sending:
        """
        Raises:
            RequestRefused: the request is wrong.
            ClientGone: it is not complete.
        """
        target = self._target(scope)
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        if target.inbox.verify is None:
            self._check_token(headers)
        kind = headers.get("content-type", JSON).partition(";")[0].strip().lower()
        if kind != JSON and kind not in NDJSON:
            raise RequestRefused(
                415, f"content type {kind!r}: give {JSON}, or {NDJSON[0]} for several records"
            )
        if headers.get("content-encoding", "identity") != "identity":
            raise RequestRefused(415, "send the body without a content encoding")
        key = headers.get("idempotency-key")
        if key is not None and not 0 < len(key) <= MOST_ID:
            raise RequestRefused(400, f"Idempotency-Key: give 1 to {MOST_ID} characters")
        body = await _body(headers, receive, target.inbox.max_body)
        if target.inbox.verify is not None and target.inbox.verify(headers, body) is not True:
            raise RequestRefused(401, "the signature of the body is missing or wrong")
        if kind == JSON:
            return _one(target, body, key)
        return _several(target, body, key)

    def _target(self, scope: Scope) -> Target:
        path: str = scope["path"]
        root: str = scope.get("root_path", "")
        if root and path.startswith(f"{root}/"):
            path = path[len(root) :]
        name = path.removeprefix("/streams/").strip("/")
        target = self._targets.get(name)
        if target is None:
            known = ", ".join(self._targets) or "none"
            raise RequestRefused(
                404, f"no stream {name!r} takes records here; streams that do: {known}"
            )
        if scope["method"] != "POST":
            raise RequestRefused(405, "send records by POST", {"allow": "POST"})
        return target

    def _check_token(self, headers: dict[str, str]) -> None:
        if not self._tokens:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        sent = given.strip().encode()
        if scheme.lower() != "bearer" or not any(
            hmac.compare_digest(sent, token) for token in self._tokens
        ):
            raise RequestRefused(
                401, "give a valid token: Authorization: Bearer …", {"www-authenticate": "Bearer"}
            )


async def _body(headers: dict[str, str], receive: Receive, most: int) -> bytes:
    too_large = RequestRefused(413, f"the body has more than {most:,} bytes; send less at once")
    length = headers.get("content-length", "0")
    if length.isdecimal() and int(length) > most:
        raise too_large
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                part = message.get("body", b"")
                size += len(part)
                if size > most:
                    raise too_large
                parts.append(part)
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise RequestRefused(408, f"the body was not complete after {BODY_SECONDS:g} s") from None


def _one(target: Target, body: bytes, key: str | None) -> Sending:
    try:
        body.decode()  # msgspec does not look at fields that it leaves out
        value = target.stream.codec.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        hint = ". Send several records as NDJSON" if body.lstrip().startswith(b"[") else ""
        raise RequestRefused(
            400, f"the body is no record of stream {target.stream.name!r}: {error}{hint}"
        ) from None
    id_ = key if key is not None else _id_of(target.inbox, value)
    _require_id(target, id_)
    return Sending(target.stream.name, [body], [id_])


def _several(target: Target, body: bytes, key: str | None) -> Sending:
    stream, inbox = target.stream, target.inbox
    found = Sending(stream.name, [], batch=key)
    for number, line in enumerate(body.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            line.decode()
            value = stream.codec.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RequestRefused(
                400, f"line {number} is no record of stream {stream.name!r}: {error}", line=number
            ) from None
        id_ = None if key is not None else _id_of(inbox, value)
        if key is None:
            _require_id(target, id_)
        found.records.append(line)
        found.ids.append(id_)
    if not found.records:
        raise RequestRefused(400, "the body has no line with a record")
    return found


def _id_of(inbox: Inbox, value: Any) -> str | None:
    if inbox.id is None:
        return None
    id_ = str(inbox.id(value))
    if not 0 < len(id_) <= MOST_ID:
        raise RequestRefused(
            400, f"the record's id has {len(id_):,} characters; {MOST_ID} are allowed"
        )
    return id_


def _require_id(target: Target, id_: str | None) -> None:
    if id_ is None and target.inbox.require_id:
        raise RequestRefused(
            400,
            f"stream {target.stream.name!r} takes no record without an id: give an Idempotency-Key",
        )
