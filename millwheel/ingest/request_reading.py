"""Reads a request: its sender's token, its stream and its records.

Everything is checked before anything is sent: a request is taken or refused as a whole.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Generator,
    Iterator,
    Mapping,
    MutableMapping,
)
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from millwheel.core.codec import place_of, reason
from millwheel.core.json_rows import BadRow
from millwheel.core.model import event_micros
from millwheel.core.suggestion import with_suggestion
from millwheel.ingest.door import Door

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

BODY_SECONDS = 30.0

JSON = "application/json"
NDJSON = ("application/x-ndjson", "application/jsonl", "application/x-jsonlines")

MOST_ID = 255

HELD_BYTES = 64 << 20
"""Bytes of bodies that are received or sent at once; with more, requests are refused, except a
single one. Bodies of signed streams are counted apart: their sender has proven nothing until they
are complete."""

OF_KEY = "key:"
"""Prefix of an Idempotency-Key of records that have ids of their own: both are ids of one
stream."""


@dataclass
class Sending:
    stream: str
    records: list[bytes]
    ids: list[str | None] = field(default_factory=list)
    batch: str | None = None
    """The id of the whole, from the header Idempotency-Key."""
    at: datetime | None = None

    @property
    def is_idempotent(self) -> bool:
        return self.batch is not None or None not in self.ids


class RequestRefused(Exception):
    """The request is answered with an error; nothing of it was sent.

    Args:
        status: HTTP status.
        message: the fault, and its remedy.
        headers: headers of the answer.
        line: the line of the body that is wrong.
    """

    def __init__(
        self,
        status: int,
        message: str,
        headers: dict[str, str] | None = None,
        *,
        line: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}
        self.line = line


class ClientGone(Exception):
    """The client closed the connection before its request was complete."""


class RequestReader:
    """Reads requests to some streams.

    Args:
        doors: by the streams' names.
        tokens: bearer tokens, one of which a request must have; none: no token is asked for.
        from_pages: take requests of web pages also for streams that ask for neither a token nor a
            signature.
    """

    def __init__(
        self, doors: Mapping[str, Door], tokens: Collection[str], *, from_pages: bool = True
    ) -> None:
        self._doors = doors
        self._tokens = [token.encode() for token in tokens]
        self._from_pages = from_pages
        self._held = {False: 0, True: 0}
        """Bytes of bodies that are received or sent now: of requests with a token, and of signed
        ones."""

    @contextmanager
    def request(self, scope: Scope, receive: Receive) -> Iterator[RecordsRequest]:
        request = RecordsRequest(self, scope, receive)
        try:
            yield request
        finally:
            self._held[request.is_signed] -= request.held

    def hold(self, request: RecordsRequest, size: int) -> None:
        """Count further bytes of a request's body.

        Raises:
            RequestRefused: too many bytes are held for all requests together.
        """
        held = self._held[request.is_signed]
        if held + size > HELD_BYTES and held > request.held:
            raise RequestRefused(
                503, "too many bodies are being received: send again later", {"retry-after": "1"}
            )
        request.held += size
        self._held[request.is_signed] += size

    def admitted(self, scope: Scope, headers: Mapping[str, str]) -> Door:
        """The stream that a request is for. Only a request that may send learns which streams
        exist.

        Raises:
            RequestRefused: there is no such stream, or the request may not send to it.
        """
        name = _name(scope)
        door = self._doors.get(name)
        is_signed = door is not None and door.inbox.verify is not None
        if self._tokens and not is_signed:
            self._check_token(headers)
        elif not is_signed and not self._from_pages and "origin" in headers:
            raise RequestRefused(
                403, "web pages may not send here: set tokens, and let the page's server send one"
            )
        if door is None:
            known = ""
            if self._tokens or all(each.inbox.verify is None for each in self._doors.values()):
                known = with_suggestion(
                    f"; streams that do: {', '.join(self._doors)}", name, self._doors
                )
            raise RequestRefused(404, f"no stream {name!r} takes records here{known}")
        if scope["method"] != "POST":
            raise RequestRefused(405, "send records by POST", {"allow": "POST"})
        return door

    def _check_token(self, headers: Mapping[str, str]) -> None:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        sent = given.strip().encode("latin-1")  # as the header came
        found = [hmac.compare_digest(sent, token) for token in self._tokens]
        if scheme.lower() != "bearer" or not any(found):
            raise RequestRefused(
                401, "give a valid token: Authorization: Bearer …", {"www-authenticate": "Bearer"}
            )


class RecordsRequest:
    def __init__(self, reader: RequestReader, scope: Scope, receive: Receive) -> None:
        self._reader = reader
        self._scope = scope
        self._receive = receive
        self.held = 0
        self.is_signed = False

    async def read(self) -> Sending:
        """
        Raises:
            RequestRefused: the request is wrong.
            ClientGone: it is not complete.
        """
        headers = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in self._scope["headers"]
        }
        door = self._reader.admitted(self._scope, headers)
        self.is_signed = door.inbox.verify is not None
        kind = headers.get("content-type", JSON).partition(";")[0].strip().lower()
        if kind != JSON and kind not in NDJSON:
            raise RequestRefused(
                415, f"content type {kind!r}: give {JSON}, or {NDJSON[0]} for several records"
            )
        if headers.get("content-encoding", "identity") != "identity":
            raise RequestRefused(415, "send the body without a content encoding")
        at = _time(self._scope, door)
        key = headers.get("idempotency-key")
        if key is not None and not (0 < len(key) <= MOST_ID and key.isprintable()):
            raise RequestRefused(400, f"Idempotency-Key: give 1 to {MOST_ID} printable characters")
        body = await self._body(headers, door.inbox.max_body)
        if door.inbox.verify is not None and door.inbox.verify(headers, body) is not True:
            raise RequestRefused(401, "the signature of the body is missing or wrong")
        return _Records(door, key, at).of(body, one=kind == JSON)

    async def _body(self, headers: Mapping[str, str], limit: int) -> bytes:
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > limit:
            raise _too_large(limit)
        parts: list[bytes] = []
        first = _FirstMessage(self._receive)
        if first.message is not None and self._is_last(first.message, parts, limit):
            return parts[0]
        try:
            async with asyncio.timeout(BODY_SECONDS):
                if first.message is None and self._is_last(await first, parts, limit):
                    return parts[0]
                while not self._is_last(await self._receive(), parts, limit):
                    pass
                return b"".join(parts)
        except TimeoutError:
            raise RequestRefused(
                408, f"the body was not complete after {BODY_SECONDS:g} s"
            ) from None

    def _is_last(self, message: MutableMapping[str, Any], parts: list[bytes], limit: int) -> bool:
        """Add a part of the body; says whether it is the last one."""
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        if self.held + len(part) > limit:
            raise _too_large(limit)
        self._reader.hold(self, len(part))
        parts.append(part)
        return not message.get("more_body", False)


class _FirstMessage:
    """The first message of a request, of which most consist. Mostly it is there already: then
    nothing waits, and no timer is needed."""

    def __init__(self, receive: Receive) -> None:
        self.message: MutableMapping[str, Any] | None = None
        """None: it has to be awaited."""
        self._steps = receive().__await__()
        try:
            self._awaited = next(self._steps)
        except StopIteration as done:
            self.message = done.value

    def __await__(self) -> Generator[Any, Any, MutableMapping[str, Any]]:
        yield self._awaited
        return (yield from self._steps)


def _too_large(limit: int) -> RequestRefused:
    return RequestRefused(413, f"the body has more than {limit:,} bytes; send less at once")


@dataclass(frozen=True)
class _Records:
    door: Door
    key: str | None
    at: datetime | None

    def of(self, body: bytes, *, one: bool) -> Sending:
        found = Sending(self.door.stream.name, [], at=self.at)
        if one:
            self._add(found, body, None)
        else:
            for number, line in enumerate(body.split(b"\n"), 1):
                if line.strip():
                    self._add(found, line, number)
            if not found.records:
                raise RequestRefused(400, "the body has no line with a record")
        if self.key is not None:
            if self.door.inbox.id is not None:
                found.batch = OF_KEY + self.key
            elif one:
                found.ids = [self.key]
            else:
                found.batch = self.key
        return found

    def _add(self, found: Sending, raw: bytes, number: int | None) -> None:
        name = self.door.stream.name
        micros = event_micros(self.at or datetime.now(UTC))
        subject = "the body" if number is None else f"line {number}"
        try:
            value = self.door.value(raw, micros)
        except BadRow as error:
            is_list = number is None and raw.lstrip().startswith(b"[")
            hint = ". Send several records as NDJSON" if is_list else ""
            raise RequestRefused(
                400, f"{subject} is no record of stream {name!r}: {error}{hint}", line=number
            ) from None
        id_ = self._id_of(value, number)
        if id_ is None and self.key is None and self.door.inbox.require_id:
            raise RequestRefused(
                400, f"stream {name!r} takes no record without an id: give an Idempotency-Key"
            )
        found.records.append(raw)
        found.ids.append(id_)

    def _id_of(self, value: Any, number: int | None) -> str | None:
        identify = self.door.inbox.id
        if identify is None:
            return None
        try:
            id_ = str(identify(value))
        except (Exception, SystemExit) as error:
            raise RequestRefused(
                400, f"id= of Inbox, {place_of(identify)}, failed: {reason(error)}", line=number
            ) from None
        if not 0 < len(id_) <= MOST_ID:
            raise RequestRefused(
                400,
                f"the record's id has {len(id_):,} characters; {MOST_ID} are allowed",
                line=number,
            )
        return id_


def _name(scope: Scope) -> str:
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if root and path.startswith(f"{root}/"):
        path = path[len(root) :]
    return path.removeprefix("/streams/").strip("/")


def _time(scope: Scope, door: Door) -> datetime | None:
    """The event time in the query, ``?at=2026-01-31T10:00:00Z``.

    Raises:
        RequestRefused: it is none, or the query has another field.
    """
    query = scope.get("query_string", b"").decode("latin-1")
    if not query:
        return None
    name, _, text = query.partition("=")
    if name != "at":
        raise RequestRefused(
            400,
            f"the query {query!r:.80} is not known; ?at=TIME gives the event time of the records",
        )
    if not door.takes_times:
        raise RequestRefused(
            400, f"the event time of stream {door.stream.name!r} comes from its values: omit ?at="
        )
    try:
        moment = datetime.fromisoformat(unquote(text))
        event_micros(moment)
    except ValueError as error:
        raise RequestRefused(
            400, f"?at={text:.80} is no event time: {error}. Write it as 2026-01-31T10:00:00Z"
        ) from None
    return moment
