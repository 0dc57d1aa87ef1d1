"""Records over HTTP: each answer of the app, and a server that is killed."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import os
import random
import socket
import time
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import httpx
import msgspec
import psycopg
import pytest

from millwheel import Computation, Context, Discard, Inbox, Pipeline, Record, Stream, Table
from millwheel.core.json_rows import BadRow
from millwheel.errors import StoreUnavailable, UsageError
from millwheel.ingest import Ingest, hmac_sha256
from millwheel.ingest.commit_sharing import GroupSender
from millwheel.ingest.door import Door
from millwheel.ingest.request_reading import RequestReader, RequestRefused, Sending
from millwheel.services.endpoint import Endpoint
from millwheel.services.ingesting import IngestOptions, IngestServer
from millwheel.store.console.migrate import migrate
from tests.inbox.service import NAME
from tests.support.forked_commands import Forked, parent
from tests.support.orders import ORDERS
from tests.support.servers import database
from tests.support.store_sites import Owner, PostgresSite
from tests.support.values import ITEMS, Item

pytestmark = pytest.mark.newest

WORDS = Stream("words", str)
KEY = "Idempotency-Key"
NDJSON = "application/x-ndjson"


def made(name: str, **options: Any) -> Pipeline:
    """A pipeline that takes words."""
    pipeline = Pipeline(name)
    pipeline.inject(WORDS, Inbox(**options))
    pipeline.sink(WORDS, Discard())
    return pipeline


Client = httpx.AsyncClient
Serve = Callable[..., Any]


@pytest.fixture
async def serve(postgres: PostgresSite) -> AsyncIterator[Serve]:
    """Gives a client of an app whose stream `words` is open; options of `Inbox` and `Ingest`."""
    owner = await Owner.take(postgres.store)
    async with contextlib.AsyncExitStack() as stack:

        async def serve(inbox: dict[str, Any] | None = None, **options: Any) -> Client:
            pipeline = made(postgres.schema.name, **(inbox or {}))
            (target,) = Ingest(pipeline).doors.values()
            await postgres.store.open_inbox(
                "words",
                owner.injector.id,
                requires_id=target.inbox.require_id,
                remember=target.inbox.remember,
            )
            app = Ingest(pipeline, postgres.schema.url, **options)
            stack.push_async_callback(app.close)
            transport = httpx.ASGITransport(app=app)
            return await stack.enter_async_context(Client(transport=transport, base_url="http://x"))

        yield serve


async def sent(postgres: PostgresSite) -> list[str]:
    rows = await postgres.query("SELECT value FROM {t} ORDER BY seq", t="sent_record")
    return [value.strip('"') for (value,) in rows]


async def test_a_record_is_taken_once(postgres: PostgresSite, serve: Serve) -> None:
    client = await serve()
    new = await client.post("/streams/words", json="a", headers={KEY: "1"})
    assert (new.status_code, new.json()) == (
        200, {"accepted": 1, "duplicates": 0, "idempotent": True},
    )  # fmt: skip
    assert await sent(postgres) == ["a"]
    again = await client.post("/streams/words", json="a", headers={KEY: "1"})
    assert (again.status_code, again.json()["duplicates"]) == (200, 1)
    other = await client.post("/streams/words", json="b", headers={KEY: "1"})
    assert (other.status_code, "another value" in other.json()["error"]) == (422, True)
    without = await client.post("/streams/words", json="a")
    assert without.json() == {"accepted": 1, "duplicates": 0, "idempotent": False}
    assert await sent(postgres) == ["a", "a"]


async def test_lines_are_taken_together(postgres: PostgresSite, serve: Serve) -> None:
    client = await serve()

    async def post(body: bytes, **headers: str) -> httpx.Response:
        headers = {"content-type": NDJSON, **headers}
        found: httpx.Response = await client.post("/streams/words", content=body, headers=headers)
        return found

    new = await post(b'"a"\n\n"b"', **{KEY: "1"})
    assert new.json() == {"accepted": 2, "duplicates": 0, "idempotent": True}
    assert (await post(b'"a"\n"b"\n', **{KEY: "1"})).json()["duplicates"] == 2
    assert (await post(b'"a"', **{KEY: "1"})).status_code == 422
    assert (await post(b'"a"\n"b"\n"c"', **{KEY: "1"})).status_code == 422
    bad = await post(b'"c"\n\n5')
    assert (bad.status_code, bad.json()["line"]) == (400, 3)
    assert (await post(b"\n")).status_code == 400
    assert await sent(postgres) == ["a", "b"]


async def test_ids_from_the_value(postgres: PostgresSite, serve: Serve) -> None:
    client = await serve({"id": str.lower, "require_id": True})
    headers = {"content-type": NDJSON}
    found = await client.post("/streams/words", content=b'"a"\n"b"\n"a"', headers=headers)
    assert found.json() == {"accepted": 2, "duplicates": 1, "idempotent": True}
    assert (await client.post("/streams/words", json="A")).status_code == 422
    assert (await client.post("/streams/words", json="a")).json()["duplicates"] == 1
    assert (await client.post("/streams/words", json="")).status_code == 400
    assert await sent(postgres) == ["a", "b"]


async def test_an_id_that_is_missing(serve: Serve) -> None:
    client = await serve({"require_id": True})
    found = await client.post("/streams/words", json="a")
    assert (found.status_code, KEY in found.json()["error"]) == (400, True)


REFUSED: list[tuple[str, str, dict[str, Any], int]] = [
    ("POST", "/streams/others", {"json": "a"}, 404),
    ("GET", "/streams/words", {}, 405),
    ("POST", "/streams/words", {"json": 5}, 400),
    ("POST", "/streams/words", {"json": ["a"]}, 400),
    ("POST", "/streams/words", {"json": "a\0b"}, 400),
    ("POST", "/streams/words", {"content": b'"a'}, 400),
    ("POST", "/streams/words", {"content": b'"\xff"'}, 400),
    ("POST", "/streamswords", {"json": "a"}, 404),
    ("POST", "/streams/words", {"data": {"a": "b"}}, 415),
    ("POST", "/streams/words", {"json": "a", "headers": {"content-encoding": "gzip"}}, 415),
    ("POST", "/streams/words", {"json": "a", "headers": {KEY: ""}}, 400),
    ("POST", "/streams/words", {"json": "a", "headers": {KEY: "k" * 256}}, 400),
    ("POST", "/streams/words", {"json": "a" * 100}, 413),
]
"""Method, path and content of a request, and the status of its answer."""


async def test_what_is_refused(postgres: PostgresSite, serve: Serve) -> None:
    client = await serve({"max_body": 50})
    for method, path, options, status in REFUSED:
        found = await client.request(method, path, **options)
        assert found.status_code == status, (method, path, options)
        assert found.json()["error"]
    assert await sent(postgres) == []


async def test_a_body_without_a_length_is_counted(serve: Serve) -> None:
    client = await serve({"max_body": 50})

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b"          "

    found = await client.post(
        "/streams/words", content=parts(), headers={"content-type": "application/json"}
    )
    assert found.status_code == 413


@pytest.mark.parametrize("sent", [[], [b'"a']])
async def test_a_body_that_does_not_come(
    monkeypatch: pytest.MonkeyPatch, sent: list[bytes]
) -> None:
    """Nothing of it, or a part: the request ends, and leaves no bytes that count as held."""
    monkeypatch.setattr("millwheel.ingest.request_reading.BODY_SECONDS", 0.05)
    reader = RequestReader(Ingest(made("shop")).doors, [])
    parts = list(sent)

    async def receive() -> dict[str, Any]:
        if not parts:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": parts.pop(), "more_body": True}

    scope = {
        "type": "http", "method": "POST", "path": "/streams/words", "query_string": b"",
        "headers": [],
    }  # fmt: skip
    with pytest.raises(RequestRefused) as caught, reader.request(scope, receive) as request:
        await request.read()
    assert caught.value.status == 408
    assert not any(reader._held.values())


async def test_tokens(serve: Serve) -> None:
    client = await serve(tokens=["one", "two"])
    for given, status in (
        (None, 401),
        ("Bearer three", 401),
        ("Basic one", 401),
        ("Bearer two", 200),
    ):
        headers = {} if given is None else {"authorization": given}
        assert (
            await client.post("/streams/words", json="a", headers=headers)
        ).status_code == status


async def test_signatures(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await serve(
        {"verify": hmac_sha256("X-Signature", "WEBHOOK_SECRET", prefix="sha256=")}, tokens=["one"]
    )
    body = b'"a"'
    right = "sha256=" + hmac.new(b"secret", body, hashlib.sha256).hexdigest()

    async def post(body: bytes, signature: str) -> int:
        headers = {"x-signature": signature, "content-type": "application/json"}
        return int((await client.post("/streams/words", content=body, headers=headers)).status_code)

    assert await post(body, right) == 500  # the secret is not set
    monkeypatch.setenv("WEBHOOK_SECRET", "secret")
    assert await post(body, right) == 200
    assert await post(body, right.upper()) == 401
    assert await post(b'"b"', right) == 401
    assert await post(body, "") == 401


async def test_too_many_waiting_records(postgres: PostgresSite, serve: Serve) -> None:
    client = await serve(most_waiting=2)
    for _ in range(2):
        assert (await client.post("/streams/words", json="a")).status_code == 200
    await asyncio.sleep(0.11)
    full = await client.post("/streams/words", json="a")
    assert (full.status_code, full.headers["retry-after"]) == (429, "1")
    await postgres.query("DELETE FROM {t}", t="sent_record")
    await asyncio.sleep(0.11)
    assert (await client.post("/streams/words", json="a")).status_code == 200


async def test_requests_share_a_commit_and_not_their_faults(
    postgres: PostgresSite, serve: Serve
) -> None:
    """Of requests that come at once, a bad one fails alone; a repeat counts once."""
    client = await serve()
    await client.post("/streams/words", json="a", headers={KEY: "1"})

    async def post(word: str, key: str, kind: str = "application/json") -> int:
        found = await client.post(
            "/streams/words", content=f'"{word}"', headers={KEY: key, "content-type": kind}
        )
        return int(found.status_code)

    ((before,),) = await postgres.query("SELECT pg_current_xact_id()::text::bigint")
    good = await asyncio.gather(*(post(f"w{number}", f"g{number}") for number in range(50)))
    ((after,),) = await postgres.query("SELECT pg_current_xact_id()::text::bigint")
    assert set(good) == {200}
    assert after - before < 10
    mixed = await asyncio.gather(
        post("b", "2"), post("x", "1"), post("b", "2"), post("c", "3", NDJSON),
        post("c", "3", NDJSON),
        post("d", "4", NDJSON), post("y", "3", NDJSON),
    )  # fmt: skip
    assert mixed == [200, 422, 200, 200, 200, 200, 422]
    assert sorted(await sent(postgres)) == sorted(
        ["a", "b", "c", "d", *(f"w{n}" for n in range(50))]
    )


class Part(msgspec.Struct):
    """A value that leaves out what it does not know."""

    number: int


PARTS = Stream("words", Part)


async def test_a_poisoned_request_fails_alone(postgres: PostgresSite) -> None:
    """What msgspec passes over, and Postgres does not: a number without end, a text that is no
    UTF-8."""
    owner = await Owner.take(postgres.store)
    await postgres.store.open_inbox(
        "words", owner.injector.id, requires_id=False, remember=timedelta(days=1)
    )
    pipeline = Pipeline(postgres.schema.name)
    pipeline.inject(PARTS, Inbox())
    pipeline.sink(PARTS, Discard())
    app = Ingest(pipeline, postgres.schema.url)
    async with Client(transport=httpx.ASGITransport(app=app), base_url="http://x") as client:

        async def post(body: bytes) -> int:
            headers = {"content-type": "application/json"}
            found = await client.post("/streams/words", content=body, headers=headers)
            return int(found.status_code)

        poison = [
            b'{"number":1,"x":1e200000}',
            b'{"number":1,"x":"\xff"}',
            b'{"number":1,"x":"\\u0000"}',
        ]
        good = [b'{"number":%d}' % number for number in range(5)]
        found = await asyncio.gather(*map(post, [*poison, *good]))
    assert found == [400] * 3 + [200] * 5
    await app.close()


class Unsure:
    """A client with a connection that breaks at each commit: the outcome is unknown."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    async def count_waiting(self, stream: str, most: int) -> int:
        return 0

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[str]:
        yield "connection"
        raise StoreUnavailable("the connection broke")

    async def send_json(self, stream: str, records: list[bytes], **options: Any) -> list[bool]:
        self.sent += records
        if options["connection"] is None:
            raise StoreUnavailable("the connection broke")
        return [True] * len(records)


@pytest.mark.parametrize("batch", [None, "1"])
async def test_what_may_be_committed_is_not_sent_again(batch: str | None) -> None:
    """Each client gets 503 and decides by itself: a repeat without a key is another record."""
    client = Unsure()
    sender = GroupSender(cast("Any", client), 1_000)
    requests = [Sending("words", [b'"a"'], [None]), Sending("words", [b'"b"'], [None], batch)]
    found = await asyncio.gather(*map(sender.send, requests), return_exceptions=True)
    assert [type(error) for error in found] == [StoreUnavailable] * 2
    assert sorted(client.sent) == [b'"a"', b'"b"']


class Order(msgspec.Struct):
    """A value with a key, a number that a table keeps, and code of its own."""

    number: int
    customer: str = "ann"
    currency: str = "EUR"

    def __post_init__(self) -> None:
        if self.currency != "EUR":
            raise KeyError(self.currency)


ORDERS_IN = Stream("words", Order)


def orders(name: str, **options: Any) -> Pipeline:
    """Orders by customer, and in a table."""
    pipeline = Pipeline(name)
    pipeline.inject(ORDERS_IN, Inbox(**options))
    pipeline.add(Quiet(), ORDERS_IN.by(lambda order: order.customer[:3000]))
    pipeline.sink(ORDERS_IN, Table("orders", Order))
    return pipeline


class Quiet(Computation[Order, None]):
    async def process_record(self, record: Record[Order], ctx: Context[None]) -> None:
        pass


NOT_TAKEN = {
    "null": (b"null", "Expected `object`"),
    "deep": (b'{"number":1,"x":%b}' % (b"[" * 600 + b"]" * 600), "nested more than 500"),
    "deeper than the interpreter": (b"[" * 20_000, "nested more than 500"),
    "an error of its code": (b'{"number":1,"currency":"USD"}', "KeyError: 'USD'"),
    "a key that is too long": (
        b'{"number":1,"customer":"%b"}' % (b"a" * 2_000),
        "more than the 1,304",
    ),
    "a long exponent": (b'{"number":1,"x":1e1001}', "number of more than 1,000 digits"),
    "many digits": (b'{"number":1,"x":%b}' % (b"1" * 1_001), "number of more than 1,000 digits"),
    "many small digits": (b'{"number":1,"x":1e-5000}', "number of more than 1,000 digits"),
    "an endless exponent": (b'{"number":1,"x":1e99999999999}', "number of more than 1,000 digits"),
    "NUL": (b'{"number":1,"x":"a\\u0000"}', "NUL character"),
    "half a pair": (b'{"number":1,"x":"\\ud800 "}', "half of a surrogate"),
    "the other half": (b'{"number":1,"x":"\\udc00"}', "half of a surrogate"),
    "more than a bigint": (b'{"number":9223372036854775808}', "column 'number' of table 'orders'"),
    "not UTF-8": (b'{"number":1,"x":"\xff"}', "byte 18 is not UTF-8"),
}


@pytest.mark.parametrize(("raw", "reason"), NOT_TAKEN.values(), ids=NOT_TAKEN)
def test_what_the_injector_would_not_take_is_not_accepted(raw: bytes, reason: str) -> None:
    """While its sender is there to hear of it: 400, and never 500."""
    door = Ingest(orders("shop")).doors["words"]
    with pytest.raises(BadRow) as caught:
        door.value(raw, 0)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"number":9223372036854775807,"x":1e308}',
        b'{"number":1,"x":"1e99999 \\\\u0000 \\ud83d\\ude00"}',
        b'{"number":1,"x":%b}' % (b"[" * 400 + b"]" * 400),
        b'{"number":-9223372036854775808,"x":0.%b}' % (b"1" * 900),
    ],
)
def test_what_the_injector_takes_is_accepted(raw: bytes) -> None:
    Ingest(orders("shop")).doors["words"].value(raw, 0)


def test_functions_of_the_pipeline_that_fail_on_a_value() -> None:
    """The sender learns which function it was: its record would have stopped the pipeline."""

    def door(**options: Any) -> Door:
        pipeline = Pipeline("shop")
        pipeline.inject(ORDERS_IN, Inbox(), **options)
        pipeline.sink(ORDERS_IN, Table("kept", Order), row=lambda order: [order][order.number])
        return Ingest(pipeline).doors["words"]

    with pytest.raises(BadRow, match="no row of table 'kept': IndexError"):
        door().value(b'{"number":1}', 0)
    door().value(b'{"number":0}', 0)
    with pytest.raises(BadRow, match=r"timestamp= of inject\('words'"):
        door(timestamp=lambda order: order.when).value(b'{"number":0}', 0)


async def test_a_record_is_refused_by_400(serve: Serve) -> None:
    client = await serve({"id": lambda word: {"a": 1}[word]})
    for word in ("a" * 2_000, "b"):
        assert (await client.post("/streams/words", json=word)).status_code == 400
    assert (await client.post("/streams/words", json="a")).status_code == 200


async def test_only_those_who_may_send_learn_the_names(postgres: PostgresSite) -> None:
    pipeline = made(postgres.schema.name)
    signed = Pipeline(postgres.schema.name)
    signed.inject(WORDS, Inbox(verify=lambda headers, body: False))
    signed.sink(WORDS, Discard())

    async def post(app: Ingest, **headers: str) -> tuple[int, bool]:
        async with Client(transport=httpx.ASGITransport(app=app), base_url="http://x") as client:
            found = await client.post("/streams/others", json="a", headers=headers)
            await client.aclose()
        await app.close()
        return found.status_code, "words" in found.json()["error"]

    guarded = Ingest(pipeline, tokens=["one"])
    assert await post(guarded) == (401, False)
    assert await post(guarded, authorization="Bearer one") == (404, True)
    assert await post(Ingest(signed)) == (404, False)
    assert await post(Ingest(pipeline)) == (404, True)


async def test_web_pages_need_a_token_where_nobody_else_does(serve: Serve) -> None:
    page = {"origin": "http://evil.example"}
    client = await serve(from_pages=False)
    assert (await client.post("/streams/words", json="a", headers=page)).status_code == 403
    assert (await client.post("/streams/words", json="a")).status_code == 200
    client = await serve(from_pages=False, tokens=["one"])
    page["authorization"] = "Bearer one"
    assert (await client.post("/streams/words", json="a", headers=page)).status_code == 200
    client = await serve()
    assert (await client.post("/streams/words", json="a", headers=page)).status_code == 200


async def test_the_event_time_of_a_request(postgres: PostgresSite, serve: Serve) -> None:
    client = await serve()
    for at in ("2026-01-31T10:00:00Z", "2026-01-31T12:00:00+02:00", "2026-01-31T12:00:00%2B02:00"):
        assert (await client.post(f"/streams/words?at={at}", json="a")).status_code == 200
    lines = {"content": b'"b"\n"c"', "headers": {"content-type": NDJSON}}
    found = await client.post("/streams/words?at=2026-01-31T10:00:00Z", **lines)
    assert found.json()["accepted"] == 2
    rows = await postgres.query("SELECT DISTINCT ts FROM {t}", t="sent_record")
    assert rows == [(1769853600000000,)]
    for query in ("at=", "at=yesterday", "at=2026-01-31T10:00:00", "at=0001-01-01T00:00:00Z",
                  "ta=1",
                  "at=2026-01-31T10:00:00Z&at=2026-01-31T10:00:00Z", "x"):  # fmt: skip
        found = await client.post(f"/streams/words?{query}", json="a")
        assert (found.status_code, "at=" in found.json()["error"]) == (400, True)
    assert len(await sent(postgres)) == 5


async def test_a_time_that_would_not_count_is_refused(serve: Serve) -> None:
    pipeline = Pipeline("shop")
    pipeline.inject(WORDS, Inbox(), timestamp=lambda word: datetime.fromisoformat(word))
    pipeline.sink(WORDS, Discard())
    transport = httpx.ASGITransport(app=Ingest(pipeline))
    async with Client(transport=transport, base_url="http://x") as client:
        found = await client.post("/streams/words?at=2026-01-31T10:00:00Z", json="a")
    assert (found.status_code, "comes from its values" in found.json()["error"]) == (400, True)


async def test_an_id_of_the_value_counts_also_with_a_key(
    postgres: PostgresSite, serve: Serve
) -> None:
    """The key is that of the request; a record does not come twice because its sender has made
    another one."""
    client = await serve({"id": str.lower})

    async def post(body: str, key: str | None, kind: str = "application/json") -> Any:
        headers = {"content-type": kind} | ({} if key is None else {KEY: key})
        return await client.post("/streams/words", content=body, headers=headers)

    taken = [(await post('"a"', key)).json()["accepted"] for key in (None, "1", "2", "a", "1")]
    assert taken == [1, 0, 0, 0, 0]
    assert (await post('"a"\n"b"', "3", NDJSON)).json() == {
        "accepted": 1, "duplicates": 1, "idempotent": True,
    }  # fmt: skip
    assert (await post('"c"', "3")).status_code == 422
    assert (await post('"b"', "b")).json()["duplicates"] == 1
    assert await sent(postgres) == ["a", "b"]
    for body, key in (('"f"', "f"), ('"d"', "e"), ('"e"', None)):  # a key is no id of a record
        assert (await post(body, key)).json()["accepted"] == 1


async def test_bodies_that_are_received_have_a_limit_together(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millwheel.ingest.request_reading.HELD_BYTES", 100)
    client = await serve()
    rest = asyncio.Event()
    began = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield b'"' + b"a" * 90
        began.set()
        await rest.wait()
        yield b'"'

    headers = {"content-type": "application/json"}
    slow = asyncio.create_task(client.post("/streams/words", content=slowly(), headers=headers))
    await began.wait()
    found = await client.post("/streams/words", json="b" * 20)
    assert (found.status_code, found.headers["retry-after"]) == (503, "1")
    rest.set()
    assert (await slow).status_code == 200
    assert (await client.post("/streams/words", json="b" * 20)).status_code == 200
    assert (await client.post("/streams/words", json="b" * 200)).status_code == 200


async def test_signed_bodies_take_no_room_of_those_with_a_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever sends them has proven nothing until they are complete."""
    monkeypatch.setattr("millwheel.ingest.request_reading.HELD_BYTES", 100)
    pipeline = made("shop")
    hooks = Stream("hooks", str)
    pipeline.inject(hooks, Inbox(verify=lambda headers, body: True))
    pipeline.sink(hooks, Discard())
    reader = RequestReader(Ingest(pipeline).doors, ["secret"])
    rest = asyncio.Event()
    stack = contextlib.ExitStack()

    async def post(stream: str, parts: AsyncIterator[bytes]) -> int:
        async def receive() -> dict[str, Any]:
            part = await anext(parts, None)
            return {"type": "http.request", "body": part or b"", "more_body": part is not None}

        headers = [(b"authorization", b"Bearer secret")] if stream == "words" else []
        scope = {
            "type": "http", "method": "POST", "path": f"/streams/{stream}",
            "query_string": b"", "headers": headers,
        }  # fmt: skip
        return len((await stack.enter_context(reader.request(scope, receive)).read()).records)

    async def body(size: int, end: asyncio.Event | None = None) -> AsyncIterator[bytes]:
        yield b'"' + b"a" * size
        if end is not None:
            await end.wait()
        yield b'"'

    with stack:
        slow = asyncio.create_task(post("hooks", body(90, rest)))
        await asyncio.sleep(0)
        with pytest.raises(RequestRefused, match="too many bodies"):
            await post("hooks", body(20))
        assert await post("words", body(90)) == 1
        with pytest.raises(RequestRefused, match="too many bodies"):
            await post("words", body(20))
        rest.set()
        assert await slow == 1
    assert await post("hooks", body(99)) == await post("words", body(99)) == 1


async def test_a_pipeline_that_has_not_started(postgres: PostgresSite) -> None:
    app = Ingest(made(postgres.schema.name), postgres.schema.url)
    async with Client(transport=httpx.ASGITransport(app=app), base_url="http://x") as client:
        found = await client.post("/streams/words", json="a")
        assert (found.status_code, found.headers["retry-after"]) == (503, "1")
    await app.close()


async def test_a_store_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millwheel.client.WAIT_SECONDS", 0.2)
    app = Ingest(made("shop"), "postgresql://nobody@127.0.0.1:1/nothing")
    async with Client(transport=httpx.ASGITransport(app=app), base_url="http://x") as client:
        found = await client.post("/streams/words", json="a")
        assert (found.status_code, found.headers["retry-after"]) == (503, "1")
    await app.close()


async def test_mounted_in_another_app(postgres: PostgresSite, serve: Serve) -> None:
    """Frameworks leave the mount in `path` and name it in `root_path`."""
    await serve()
    app = Ingest(made(postgres.schema.name), postgres.schema.url)

    async def mounted(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "root_path": "/api/streams"}, receive, send)

    async with Client(transport=httpx.ASGITransport(app=mounted), base_url="http://x") as client:
        assert (await client.post("/api/streams/words", json="a")).status_code == 200
    await app.close()


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="takes no records over HTTP"):
        Ingest(Pipeline("empty"))
    with pytest.raises(UsageError, match="tokens as a list"):
        Ingest(made("shop"), tokens="secret")
    with pytest.raises(UsageError, match="tokens as a list"):
        Ingest(made("shop"), tokens=[""])

    async def verify(headers: Any, body: bytes) -> bool:
        return False

    with pytest.raises(UsageError, match="verify must be a plain function"):
        Inbox(verify=verify)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="max_body must be"):
        Inbox(max_body=0)
    with pytest.raises(UsageError, match="needs --ingest"):
        IngestOptions.parse(None, tmp_path)
    with pytest.raises(UsageError, match="cannot be read"):
        IngestOptions.parse("127.0.0.1:0", tmp_path / "none")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(UsageError, match="no token in it"):
        IngestOptions.parse("127.0.0.1:0", tmp_path / "empty")
    (tmp_path / "tokens").write_text("one\ntwo\n")
    parsed = IngestOptions.parse("0.0.0.0:80", tmp_path / "tokens")
    assert parsed is not None
    assert parsed.tokens == ("one", "two")
    assert "one" not in repr(parsed)
    with pytest.raises(UsageError, match="anybody who reaches this address"):
        IngestServer(Ingest(made("shop")), Endpoint("0.0.0.0", 80), has_tokens=False)


@pytest.mark.process
def test_an_accepted_record_is_there_after_a_kill(
    postgres_url: Callable[[int], str], tmp_path: Path
) -> None:
    """Clients repeat what has no answer, with the same key; a server that takes records is killed
    and replaced."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with database(postgres_url(18)) as url:
        migrate(url, NAME)
        _check_through_kills(url, port, tmp_path)


def _check_through_kills(url: str, port: int, directory: Path) -> None:
    started: list[Forked] = []

    def start() -> Forked:
        command = ["worker", "tests.inbox.service:pipeline", "--ingest", f"127.0.0.1:{port}"]
        environment = {**os.environ, "MILLWHEEL_STORE": url}
        started.append(parent().start(command, directory, environment))
        return started[-1]

    try:
        posted = asyncio.run(_post_through_kills(port, start, kills=3))
        deadline = time.monotonic() + 30
        rows: list[Any] = []
        while time.monotonic() < deadline and (not rows or rows[0] != (posted, posted)):
            time.sleep(0.2)
            with psycopg.connect(url) as connection:
                rows = connection.execute(
                    f"SELECT sum(orders)::int, sum(amount)::int FROM {NAME}.totals"
                ).fetchall()
        assert rows == [(posted, posted)]
    finally:
        for server in started:
            server.kill()
            server.communicate()


async def _post_through_kills(port: int, start: Callable[[], Forked], *, kills: int) -> int:
    """Post orders of amount 1 while the server is killed; gives their number."""
    stop = asyncio.Event()
    posted = 0
    choice = random.Random(1)

    async def client(number: int) -> None:
        nonlocal posted
        n = 0
        async with Client(base_url=f"http://127.0.0.1:{port}", timeout=5) as client:
            while not stop.is_set():
                n += 1
                order = {"number": n, "customer": number, "amount": 1}
                while True:
                    with contextlib.suppress(httpx.HTTPError):
                        answer = await client.post(
                            f"/streams/{ORDERS.name}", json=order, headers={KEY: f"{number}/{n}"}
                        )
                        if answer.status_code == 200:
                            break
                        assert answer.status_code == 503, answer.text
                    await asyncio.sleep(0.05)
                posted += 1
                await asyncio.sleep(0.01)

    async def some() -> None:
        """Wait until 50 more are posted."""
        before = posted
        while posted < before + 50:  # noqa: ASYNC110 - a poll will do
            await asyncio.sleep(0.02)

    clients = [asyncio.create_task(client(number)) for number in range(8)]
    server = await asyncio.to_thread(start)
    try:
        for _ in range(kills):
            await some()
            await asyncio.sleep(choice.uniform(0, 0.3))
            server.kill()
            server.wait()
            server = await asyncio.to_thread(start)
        await some()
        stop.set()
        await asyncio.gather(*clients)
    finally:
        for task in clients:
            task.cancel()
    return posted


def test_streams_of_values_with_ids() -> None:
    """An Inbox with `id=` reads it from the decoded value."""
    pipeline = Pipeline("items")
    pipeline.inject(ITEMS, Inbox(id=lambda item: item.number))
    pipeline.sink(ITEMS, Discard())
    (target,) = Ingest(pipeline).doors.values()
    assert target.inbox.id is not None
    assert target.inbox.id(Item("a", 3)) == 3
