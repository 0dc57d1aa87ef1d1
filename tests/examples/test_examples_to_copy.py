"""The small examples: the results that each one promises, in every mode or on real servers.

Their commands are run by `test_docstring_commands.py`.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from psycopg import sql

from examples import (
    alerts_on_silence,
    calls_with_idempotency,
    followed_logs,
    kafka_to_kafka,
    late_data,
    orders_unpaid,
    own_tables,
    word_count,
)
from millwheel.kafka import Kafka, KafkaSink
from millwheel.store.console.migrate import migrate
from millwheel.testing import Harness, advance, assert_exactly_once, inject
from tests.support.product import ROOT
from tests.support.store_sites import Schema
from tests.support.typed_commands import running
from tests.support.values import at

MINUTE = timedelta(minutes=1)
SECONDS = 60.0
MOST_LINES = 60
COPIED = (
    "alerts_on_silence", "calls_with_idempotency", "followed_logs", "kafka_to_kafka", "late_data",
    "orders_unpaid", "own_tables", "spark_report", "with_fastapi", "word_count",
)  # fmt: skip


@pytest.mark.parametrize("name", COPIED)
def test_it_is_short_and_has_its_line_on_the_page(name: str) -> None:
    text = (ROOT / "examples" / f"{name}.py").read_text("utf-8")
    assert len(text.splitlines()) <= MOST_LINES
    page = (ROOT / "docs" / "howto" / "examples-to-copy.md").read_text("utf-8")
    assert f"(../../examples/{name}.py)" in page


# -- counts and late data --------------------------------------------------------------------------


async def test_words_are_counted() -> None:
    lines = [word_count.Line(at(0), "The cat"), word_count.Line(at(1), "the owl")]
    await assert_exactly_once(
        word_count.pipeline,
        [inject(word_count.LINES, line) for line in lines],
        {
            word_count.COUNTS: [
                word_count.Count("the", 1), word_count.Count("cat", 1),
                word_count.Count("the", 2), word_count.Count("owl", 1),
            ]
        },
    )  # fmt: skip


async def test_late_readings_correct_their_minute_or_are_kept_apart() -> None:
    def reading(second: float, value: float) -> late_data.Reading:
        return late_data.Reading(at(second), "a", value)

    async with Harness(late_data.pipeline) as harness:
        await harness.inject(late_data.READINGS, reading(7200, 10), reading(7205, 20))
        await harness.inject(late_data.READINGS, reading(7195, 1))  # 10 s behind: on time
        assert harness.rows("minutes") == []
        await harness.inject(late_data.READINGS, reading(7275, 40))
        assert harness.rows("minutes") == [("a", at(7140), 1.0), ("a", at(7200), 15.0)]
        await harness.inject(late_data.READINGS, reading(7230, 30), reading(3600, 99))
        assert harness.rows("minutes") == [("a", at(7140), 1.0), ("a", at(7200), 20.0)]
        assert harness.rows("too_late") == [(at(3600), "a", 99.0)]


# -- timers ----------------------------------------------------------------------------------------


async def test_orders_are_unpaid_after_ten_minutes_of_event_time() -> None:
    def step(minute: float, order: int, cents: int) -> orders_unpaid.Step:
        return orders_unpaid.Step(at(60 * minute), order, cents)

    steps = [step(0, 1, 300), step(1, 2, 500), step(2, 3, 70), step(9, 1, -300), step(9, 2, -100)]
    steps.append(step(13, 3, -70))  # a minute too late
    await assert_exactly_once(
        orders_unpaid.pipeline,
        [
            *(inject(orders_unpaid.STEPS, each) for each in steps),
            advance(orders_unpaid.STEPS, at(3600)),
        ],
        {
            orders_unpaid.UNPAID: [
                orders_unpaid.Account(2, 400, at(660)), orders_unpaid.Account(3, 70, at(720)),
            ]
        },
    )  # fmt: skip


@pytest.mark.parametrize("together", [True, False])
async def test_a_silence_is_reported_once_whether_the_timer_or_the_beat_is_first(
    together: bool,
) -> None:
    """The rows are those of event time, however many beats are read at once."""

    def beat(second: float, device: str = "boiler") -> alerts_on_silence.Beat:
        return alerts_on_silence.Beat(at(second), device)

    beats = [beat(0), beat(30), beat(25), beat(40, "pump"), beat(100), beat(110)]
    beats.append(beat(115, "pump"))
    async with Harness(alerts_on_silence.pipeline) as harness:
        if together:
            await harness.inject(alerts_on_silence.BEATS, *beats)
        for each in () if together else beats:
            if each.at != at(25):  # which is older than the one before
                await harness.advance(alerts_on_silence.BEATS, each.at)
            await harness.inject(alerts_on_silence.BEATS, each)
        await harness.advance(alerts_on_silence.BEATS, at(120))
        found = sorted(harness.produced(alerts_on_silence.ALERTS), key=lambda alert: alert.at)
        assert [(alert.device, alert.at, alert.is_silent) for alert in found] == [
            ("boiler", at(90), True), ("boiler", at(100), False), ("pump", at(100), True),
            ("pump", at(115), False),
        ]  # fmt: skip


# -- other systems ---------------------------------------------------------------------------------


class Bank:
    """The user's own tables, in a database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.checked = 0

    def reset(self) -> None:
        with psycopg.connect(self.url) as connection:
            connection.execute("DROP TABLE IF EXISTS public.account, public.posting")
            connection.execute("CREATE TABLE public.account (name text PRIMARY KEY, cents bigint)")
            connection.execute(
                "CREATE TABLE public.posting (at timestamptz, account text, cents bigint)"
            )

    def check(self) -> None:
        with psycopg.connect(self.url) as connection:
            accounts = connection.execute("SELECT * FROM public.account ORDER BY name").fetchall()
            postings = connection.execute("SELECT account, cents FROM public.posting").fetchall()
        assert accounts == [("ann", -300), ("bob", 250), ("cem", 50)]
        assert sorted(postings) == [("ann", -300), ("bob", -50), ("bob", 300), ("cem", 50)]
        self.checked += 1


async def test_each_transfer_changes_the_accounts_once(
    new_schema: Callable[[int], Schema],
) -> None:
    bank = Bank(new_schema(18).url)
    transfers = [own_tables.Transfer(at(0), "ann", "bob", 300)]
    transfers.append(own_tables.Transfer(at(1), "bob", "cem", 50))
    await assert_exactly_once(
        own_tables.pipeline,
        [inject(own_tables.TRANSFERS, transfer) for transfer in transfers],
        {},
        before_each=bank.reset,
        after_each=bank.check,
        database=bank.url,
    )
    assert bank.checked > 6


async def test_a_payment_that_was_sent_twice_is_passed_on_once() -> None:
    pipeline = kafka_to_kafka.pipeline
    (source,) = [
        node.injection.source for node in pipeline.graph().nodes if node.injection is not None
    ]
    assert isinstance(source, Kafka)
    assert [type(use.sink) for _, use in pipeline.sinks] == [KafkaSink]
    tea, milk = kafka_to_kafka.Payment("1", "ann", 300), kafka_to_kafka.Payment("2", "ann", 90)
    async with Harness(pipeline, start=at(0)) as harness:
        await harness.inject(kafka_to_kafka.PAYMENTS, tea, milk, tea)
        await harness.inject(kafka_to_kafka.PAYMENTS, tea, at=at(3600))
        assert harness.produced(kafka_to_kafka.ONCE) == [tea, milk]


class Charges:
    """A payment service that knows keys, and fails at times."""

    def __init__(self) -> None:
        self.by_key: dict[str, str] = {}
        self.calls: defaultdict[str, int] = defaultdict(int)
        self.fails: Callable[[str, int], bool] = lambda key, call: False

    def answer(self, key: str, body: dict[str, Any]) -> tuple[int, str]:
        self.calls[key] += 1
        receipt = self.by_key.setdefault(key, f"receipt of {body['number']}")
        return (503, "busy") if self.fails(key, self.calls[key]) else (200, receipt)

    @contextmanager
    def served(self) -> Iterator[str]:
        charges = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                status, text = charges.answer(self.headers["idempotency-key"], body)
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *arguments: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/charges"
        server.shutdown()
        server.server_close()


@pytest.fixture
def charges(monkeypatch: pytest.MonkeyPatch) -> Iterator[Charges]:
    made = Charges()
    with made.served() as url:
        monkeypatch.setattr(calls_with_idempotency, "SERVICE", url)
        yield made


def order(number: int, customer: str) -> calls_with_idempotency.Order:
    return calls_with_idempotency.Order(at(number), number, customer, 100)


async def test_a_repeated_call_has_the_key_of_the_first(charges: Charges) -> None:
    charges.fails = lambda key, call: call == 1  # it has charged, and the answer is lost
    stream, out = calls_with_idempotency.ORDERS, calls_with_idempotency.CHARGED
    await assert_exactly_once(
        calls_with_idempotency.pipeline,
        [inject(stream, order(number, "ann")) for number in (1, 2)],
        {out: [calls_with_idempotency.Charged(n, f"receipt of {n}") for n in (1, 2)]},
    )
    assert charges.calls.keys() == {"charge-1", "charge-2"}
    assert min(charges.calls.values()) > 2


async def test_a_customer_whose_call_fails_is_parked_and_the_others_are_not(
    charges: Charges,
) -> None:
    charges.fails = lambda key, call: key == "charge-1"
    async with Harness(calls_with_idempotency.pipeline) as harness:
        orders = [order(1, "ann"), order(2, "bob"), order(3, "ann")]
        await harness.inject(calls_with_idempotency.ORDERS, *orders)
        assert harness.rows("charged") == [(2, "receipt of 2")]
        assert charges.calls.keys() == {"charge-1", "charge-2"}  # order 3 waits
        assert charges.calls["charge-1"] > 3
        assert len(harness.dead_letters) == 2


# -- live ------------------------------------------------------------------------------------------


async def test_errors_are_counted_by_minute() -> None:
    def line(second: float, level: Any) -> followed_logs.Line:
        return followed_logs.Line(at(second), "web", level, "")

    async with Harness(followed_logs.pipeline) as harness:
        lines = [line(0, "error"), line(1, "info"), line(59, "error"), line(61, "error")]
        await harness.inject(followed_logs.LINES, *lines)
        await harness.advance(followed_logs.LINES, at(90))
        assert harness.rows("errors") == [("web", at(0), 2)]


@contextmanager
def worker(
    example: str, schema: str, url: str, directory: Path, **environment: str
) -> Iterator[Path]:
    """A worker of an example on a Postgres; the file with its log."""
    migrate(url, schema)
    given = " ".join(f"{name}={value}" for name, value in environment.items())
    command = f"env {given} millwheel worker examples.{example}:pipeline --store '{url}'"
    try:
        with running(command, directory, example) as log:
            yield log
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SET client_min_messages = warning")
            drop = sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema))
            connection.execute(drop)


def wait_for(url: str, statement: str, expected: list[tuple[object, ...]], log: Path) -> None:
    deadline = time.monotonic() + SECONDS
    found: list[tuple[object, ...]] = []
    while found != expected:
        assert time.monotonic() < deadline, (found, log.read_text()[-3000:])
        time.sleep(0.05)
        with suppress(psycopg.errors.UndefinedTable), psycopg.connect(url) as connection:
            found = connection.execute(statement.encode()).fetchall()


def test_a_log_that_is_rotated_counts_once(
    tmp_path: Path, new_schema: Callable[[int], Schema]
) -> None:
    url, directory = new_schema(18).url, tmp_path / "empty"
    logs = directory / "logs"
    logs.mkdir(parents=True)

    def write(name: str, second: float, service: str = "web") -> None:
        line = {"at": at(second).isoformat(), "service": service, "level": "error", "text": ""}
        with (logs / name).open("a") as file:
            file.write(json.dumps(line) + "\n")

    write("web.jsonl", 1)
    with worker("followed_logs", "followed_logs", url, directory, LOGS=str(logs)) as log:
        wait_for(url, "SELECT count(*)::int FROM followed_logs.state", [(1,)], log)
        (logs / "web.jsonl").rename(logs / "web.jsonl.1")
        write("web.jsonl", 2)
        write("web.jsonl", 130)
        found = "SELECT errors FROM followed_logs.errors ORDER BY minute"
        wait_for(url, found, [(2,)], log)


async def test_an_app_sends_orders_and_reads_totals(
    tmp_path: Path, new_schema: Callable[[int], Schema], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fastapi", reason="FastAPI is not installed")
    from examples import with_fastapi

    url = new_schema(18).url
    monkeypatch.setenv("MILLWHEEL_STORE", url)
    directory = tmp_path / "empty"
    directory.mkdir()
    transport = httpx.ASGITransport(app=with_fastapi.app)
    with worker("with_fastapi", "with_fastapi", url, directory) as log:
        wait_for(url, "SELECT count(*)::int FROM with_fastapi.inbox", [(1,)], log)
        async with (
            with_fastapi.lifespan(with_fastapi.app),
            httpx.AsyncClient(transport=transport, base_url="http://app") as app,
        ):
            tea = {"number": 1, "customer": "ann", "cents": 300}
            assert (await app.post("/orders", json=tea)).json() == {"is_new": True}
            assert (await app.post("/orders", json=tea)).json() == {"is_new": False}
            more = await app.post("/orders", json={**tea, "number": 2})
            assert more.json() == {"is_new": True}
            assert (await app.post("/orders", json={"number": 3})).status_code == 422
            wait_for(url, "SELECT cents FROM with_fastapi.totals", [(600,)], log)
            assert (await app.get("/totals/ann")).json() == {"cents": 600}
            assert (await app.get("/totals/bob")).json() == {"cents": 0}
