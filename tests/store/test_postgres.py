"""What only Postgres can get wrong: connections, locks, snapshots, plans (see I3, I4, I12, I15)."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import shutil
import string
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import AsyncConnection, sql
from psycopg.conninfo import make_conninfo

from millwheel.core.codec import encode_key
from millwheel.core.model import SLOTS, record_id
from millwheel.errors import (
    CommitUnknown,
    Fenced,
    InvariantBroken,
    MillwheelError,
    StatementError,
    StatementRace,
    StoreError,
    StoreUnavailable,
)
from millwheel.sinks import Table
from millwheel.store.console import asked_question, inspection, selection, snapshot
from millwheel.store.port.buckets import Bucket
from millwheel.store.port.commit import Commit
from millwheel.store.port.seen import SeenIds
from millwheel.store.port.workers import OtherWorker
from millwheel.store.postgres.connections import RECONNECT_SECONDS
from millwheel.store.postgres.lane import PostgresLane
from millwheel.store.postgres.processes import (
    host_identity,
    is_dead,
    process_identity,
    process_started,
)
from millwheel.store.postgres.rows import ARRAY_ROWS, ROW_BYTES
from millwheel.store.postgres.statements import SEEN, Statements
from millwheel.store.postgres.store import PostgresStore
from millwheel.store.postgres.translation import translate
from tests.support.sessions import connection_of, lane_of, session, until, waiting_for_a_lock
from tests.support.store_sites import (
    BUCKET_HIGH,
    COUNTS,
    LOG,
    REFUSED,
    SECOND,
    START,
    WORDS,
    Counted,
    Owner,
    PostgresSite,
    Schema,
    as_chunks,
    deploy,
    look,
    read_pending,
    read_states,
    row,
)

pytestmark = pytest.mark.newest


async def end(site: PostgresSite, lane: PostgresLane) -> None:
    """The server process of a lane dies."""
    assert lane.backend is not None
    pid = lane.backend[0]
    await site.query("SELECT pg_terminate_backend(%s, 5000)", pid)


# -- the line ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "wait"), [({}, "20000"), ({"tcp_user_timeout": "7000"}, "7000")])
async def test_a_cut_line_is_noticed_in_seconds_or_when_the_address_says(
    postgres: PostgresSite, asked: dict[str, str], wait: str
) -> None:
    async with AsyncExitStack() as stack:
        store = PostgresStore(make_conninfo(postgres.schema.url, **asked), postgres.schema.name)
        stack.push_async_callback(store.close)
        lane = await (await store.open()).open_lane()
        stack.push_async_callback(lane.close)
        assert isinstance(lane, PostgresLane)
        found = connection_of(lane).info.get_parameters()
    assert (found["tcp_user_timeout"], found["keepalives_idle"]) == (wait, "5")


# -- the command tag ------------------------------------------------------------------------


async def _abort(connection: AsyncConnection[Any]) -> None:
    """Fail the transaction without the lane hearing of it."""
    with contextlib.suppress(psycopg.errors.DivisionByZero):
        async with connection.pipeline():
            await connection.execute("SELECT 1 / 0")


async def _quietly_aborted(
    _: PostgresLane, connection: AsyncConnection[Any], *__: Any, **___: Any
) -> None:
    await _abort(connection)


@pytest.mark.parametrize(
    ("step", "count", "rows"),
    [("_as_user", 1, 1), ("_as_user", ARRAY_ROWS, 1)],
)
async def test_a_commit_counts_only_if_the_server_says_commit(
    postgres: PostgresSite, monkeypatch: pytest.MonkeyPatch, step: str, count: int, rows: int
) -> None:
    """Committing a failed transaction answers ROLLBACK, and no error."""
    owner = await Owner.take(postgres.store)
    before = await look(postgres, owner)
    commit = owner.commit()
    commit.states = [owner.state(f"key {state}", 1) for state in range(count)]
    commit.rows = [(LOG, row("a", 1))] * rows
    with monkeypatch.context() as patch:
        patch.setattr(PostgresLane, step, _quietly_aborted)
        with pytest.raises(StoreUnavailable, match="ROLLBACK"):
            await owner.lane.commit(commit)
    assert await look(postgres, owner) == before
    await owner.write(commit)
    assert [claim.n for claim in await owner.claim(*owner.intervals)] == [1, 1]


async def test_a_commit_of_one_statement_counts_only_outside_of_a_transaction(
    postgres: PostgresSite,
) -> None:
    """Within one that was left open it would be durable when somebody ends that, or never."""
    owner = await Owner.take(postgres.store)
    before = await look(postgres, owner)
    commit = owner.fill(owner.commit(), 3)
    await connection_of(lane_of(owner)).execute("BEGIN")
    with pytest.raises(StoreUnavailable, match="left open"):
        await owner.lane.commit(commit)
    assert await look(postgres, owner) == before
    await owner.write(commit)
    assert await look(postgres, owner) != before


# -- lost connections -------------------------------------------------------------------------


async def _outcome(owner: Owner, commit: Commit) -> type[MillwheelError] | None:
    try:
        await owner.lane.commit(commit)
    except MillwheelError as error:
        return type(error)
    return None


async def _settle(owner: Owner) -> list[int]:
    """What an engine does after a commit failed: close, connect, claim, and only then look."""
    await owner.lane.close()
    owner.lane = await owner.store.open_lane()
    return [claim.n for claim in await owner.claim(*owner.intervals)]


@pytest.mark.parametrize("count", [1, ARRAY_ROWS])
async def test_a_lane_that_died_while_idle_commits_nothing(
    postgres: PostgresSite, count: int
) -> None:
    owner = await Owner.take(postgres.store)
    await owner.write(owner.fill(owner.commit(), count))
    before = await look(postgres, owner)
    await end(postgres, lane_of(owner))
    outcome = await _outcome(owner, owner.fill(owner.commit(), count, first=100))
    assert outcome in (StoreUnavailable, CommitUnknown)
    assert await look(postgres, owner) == before
    with pytest.raises(StoreUnavailable):
        await owner.lane.commit(owner.commit())
    assert await _settle(owner) == [1, 1]
    await owner.write(owner.fill(owner.commit(), count, first=200))


async def test_a_lane_that_dies_before_commit_is_on_the_wire_has_written_nothing(
    postgres: PostgresSite,
) -> None:
    owner = await Owner.take(postgres.store)
    before = await look(postgres, owner)
    commit = owner.fill(owner.commit(), 3)
    commit.statements = [("SELECT pg_sleep(60)", ())]
    task = asyncio.create_task(_outcome(owner, commit))
    lane = lane_of(owner)
    assert lane.backend is not None
    pid = lane.backend[0]

    async def sleeps() -> bool:
        query = "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = %s"
        return bool((await postgres.query(query, pid))[0][0])

    await until(sleeps)
    await end(postgres, lane)
    assert await task is StoreUnavailable
    assert await look(postgres, owner) == before
    assert await _settle(owner) == [0, 0]


async def test_a_lane_that_dies_with_commit_on_the_wire_does_not_know(
    postgres: PostgresSite,
) -> None:
    owner = await Owner.take(postgres.store)
    before = await look(postgres, owner)
    async with session(postgres.schema) as other:
        await other.execute(postgres.schema.compose("SELECT FROM {k} FOR UPDATE", k="key_interval"))
        task = asyncio.create_task(_outcome(owner, owner.fill(owner.commit(), 3)))
        await until(lambda: waiting_for_a_lock(postgres))
        await end(postgres, lane_of(owner))
        assert await task is CommitUnknown
    assert await look(postgres, owner) == before
    assert await _settle(owner) == [0, 0]


async def test_a_lane_that_dies_as_it_rolls_back_has_its_server_process_ended(
    postgres: PostgresSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a line that was cut it would hold its intervals until it is idle for too long; and
    while the store does not answer it is not forgotten."""
    owner = await Owner.take(postgres.store)
    lane = lane_of(owner)
    connection = connection_of(lane)
    execute = connection.execute

    async def die_before(query: Any, *args: Any, **options: Any) -> Any:
        if query == "ROLLBACK":
            await end(postgres, lane)
        return await execute(query, *args, **options)

    monkeypatch.setattr(connection, "execute", die_before)
    commit = owner.fill(owner.commit())
    commit.statements.append((REFUSED, ["x"]))
    with pytest.raises(StoreUnavailable):
        await owner.write(commit)
    ended: list[Any] = []

    async def note(backends: Any) -> None:
        ended.extend(backends)
        if len(ended) == 1:
            raise StoreUnavailable("not now")

    monkeypatch.setattr(postgres.store.connections, "end_backends", note)
    with pytest.raises(StoreUnavailable):
        await lane.close()
    assert list(lane.backend or ()) in msgspec.json.decode(postgres.store.connections.backends())
    await lane.close()
    assert ended == [lane.backend, lane.backend]


@pytest.mark.parametrize("who", ["commit", "commit over two buckets", "deploy"])
async def test_whoever_locks_several_intervals_does_so_in_one_order(
    postgres: PostgresSite, who: str
) -> None:
    """Else two of them wait for each other until the server notices, a second later."""
    nodes = {"lines": {"writes": ["words"]}, "count": {"inputs": [["words", "key"]], "writes": []}}
    graph = {"nodes": nodes, "streams": ["words"]}
    owner = await Owner.take(postgres.store, await deploy(postgres.store, graph=graph))
    lower, upper = sorted(owner.intervals, key=lambda row: row.id)
    await owner.write(owner.commit())
    if who == "commit over two buckets":
        later = await postgres.store.open_bucket("time", 0, BUCKET_HIGH, BUCKET_HIGH + SECOND)
        owner.stamp = later.low
        await owner.write(owner.commit(lower, bucket=later.id))

    async def work() -> None:
        if who == "deploy":
            words = replace(WORDS, type={"type": "integer"}, version=2, migrates_from=[1])
            await deploy(postgres.store, graph=graph, words=words)
        else:
            await owner.write(owner.commit(upper, lower))

    async with session(postgres.schema) as other:
        # It is the last one that a scan of the table comes to.
        await other.execute(
            postgres.schema.compose(
                "UPDATE {k} SET sequencer = sequencer WHERE id = %s", k="key_interval"
            ),
            [lower.id],
        )
        await other.commit()
        lock = postgres.schema.compose("SELECT FROM {k} WHERE id = %s FOR UPDATE", k="key_interval")
        await other.execute(lock, [lower.id])
        working = asyncio.create_task(work())
        await until(lambda: waiting_for_a_lock(postgres))
        await other.execute("SET LOCAL lock_timeout = '300ms'")
        await other.execute(lock, [upper.id])
    await working


class Wire:
    """Stands between a store and its server, and cuts a connection at its next commit."""

    def __init__(self, url: str) -> None:
        self._upstream = make_conninfo(url)
        self._directory = Path(tempfile.mkdtemp(prefix="millwheel-wire-", dir="/tmp"))
        self._connections: set[asyncio.Task[Any]] = set()
        self._end = asyncio.Event()
        self._server: asyncio.Server
        self.cut: str | None = None
        """At the "request", which the server never sees, or at the "answer"."""
        self.commit = {"request": b'"sequencer"', "answer": b"SELECT 1\0"}
        """What is to be seen of it on the wire."""
        self.hang: bytes | None = None
        """In a request: it does not arrive, and the server is not told that the line is cut."""

    @property
    def url(self) -> str:
        return make_conninfo(self._upstream, host=str(self._directory), port=5432)

    async def __aenter__(self) -> Wire:
        await self.come_back()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.go_away()
        shutil.rmtree(self._directory)

    async def go_away(self) -> None:
        """As a server that ends: its connections break, and it takes no others."""
        self._server.close()
        self._end.set()
        await asyncio.gather(*self._connections)

    async def come_back(self) -> None:
        self._end.clear()
        path = self._directory / ".s.PGSQL.5432"
        self._server = await asyncio.start_unix_server(self._connected, path)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        parts = psycopg.conninfo.conninfo_to_dict(self._upstream)
        path = f"{parts['host']}/.s.PGSQL.{parts['port']}"
        up_reader, up_writer = await asyncio.open_unix_connection(path)
        pipes = [
            asyncio.create_task(self._pipe(reader, up_writer, "request")),
            asyncio.create_task(self._pipe(up_reader, writer, "answer")),
        ]
        ended = asyncio.create_task(self._end.wait())
        await asyncio.wait([*pipes, ended], return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        writer.close()
        if pipes[0].done() and pipes[0].result():
            await self._end.wait()
        for end in (writer, up_writer):
            end.close()
            with contextlib.suppress(ConnectionError):
                await end.wait_closed()
        await asyncio.wait(pipes)

    async def _pipe(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, place: str
    ) -> bool:
        """Pass on what comes; gives whether the server is to hang."""
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65536):
                if self.cut == place and self.commit[place] in data:
                    return False
                if place == "request" and self.hang is not None and self.hang in data:
                    return True
                target.write(data)
                await target.drain()
        return False


@pytest.mark.parametrize("count", [1, ARRAY_ROWS])
@pytest.mark.parametrize(("cut", "durable"), [("request", False), ("answer", True)])
async def test_an_unknown_commit_is_settled_by_claiming_again(
    schema: Schema, cut: str, durable: bool, count: int
) -> None:
    async with (
        Wire(schema.url) as wire,
        contextlib.aclosing(await PostgresSite.open(replace(schema, url=wire.url))) as site,
    ):
        owner = await Owner.take(site.store)
        await owner.write(owner.fill(owner.commit(), count, first=50))  # it is prepared now
        before = len(await site.states())
        wire.cut = cut
        outcome = await _outcome(owner, owner.fill(owner.commit(), count))
        wire.cut = None
        assert outcome is CommitUnknown
        assert await _settle(owner) == [1 + int(durable)] * 2
        assert len(await site.states()) == before + (count if durable else 0)
        await owner.write(owner.fill(owner.commit(), count, first=100))


async def test_a_cancelled_commit_is_not_on_the_wire_once_the_lane_is_closed(
    postgres: PostgresSite,
) -> None:
    owner = await Owner.take(postgres.store)
    before = await look(postgres, owner)
    async with session(postgres.schema) as other:
        await other.execute(postgres.schema.compose("SELECT FROM {k} FOR UPDATE", k="key_interval"))
        task = asyncio.create_task(owner.lane.commit(owner.fill(owner.commit(), 3)))
        await until(lambda: waiting_for_a_lock(postgres))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await owner.lane.close()
    assert await _settle(owner) == [0, 0]
    assert await look(postgres, owner) == before


async def test_a_store_that_does_not_answer_is_unavailable(postgres: PostgresSite) -> None:
    nowhere = make_conninfo(postgres.schema.url, host="/nonexistent")
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await PostgresStore(nowhere, postgres.schema.name).open()


async def test_the_store_works_on_after_its_idle_connections_died(postgres: PostgresSite) -> None:
    await deploy(postgres.store)
    await postgres.query(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = %s",
        f"millwheel {postgres.schema.name}",
    )

    async def answers() -> bool:
        with contextlib.suppress(StoreUnavailable):
            return bool(await postgres.store.live_buckets())
        return False

    await until(answers)


async def test_who_waits_for_a_server_that_was_away_is_served_when_it_is_back(
    schema: Schema, caplog: pytest.LogCaptureFixture
) -> None:
    async def has_given_up() -> bool:
        return f"failed after {RECONNECT_SECONDS} sec" in caplog.text

    async with (
        Wire(schema.url) as wire,
        contextlib.aclosing(await PostgresSite.open(replace(schema, url=wire.url))) as site,
    ):
        await wire.go_away()
        with pytest.raises(StoreUnavailable):
            await site.store.live_buckets()  # the connection that was there
        await until(has_given_up)
        caplog.clear()
        waiting = asyncio.create_task(site.store.live_buckets())
        await until(has_given_up)
        await wire.come_back()
        assert await waiting == []


async def test_a_heartbeat_does_not_wait_for_a_connection_of_the_pool(
    postgres: PostgresSite,
) -> None:
    """Folds and reads that take long, as many as there are connections for."""
    store = postgres.store
    me = (await Owner.take(store)).worker
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(store.connections.pool.max_size):
            await stack.enter_async_context(store.connections.connection())
        async with asyncio.timeout(5):
            assert (await store.heartbeat(me, 15.0, {})).now > 0


async def test_a_heartbeat_goes_on_after_its_connection_died(postgres: PostgresSite) -> None:
    me = (await Owner.take(postgres.store)).worker
    await postgres.store.heartbeat(me, 15.0, {})
    await postgres.query(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = %s",
        f"millwheel {postgres.schema.name}",
    )

    async def beats() -> bool:
        with contextlib.suppress(StoreUnavailable):
            return (await postgres.store.heartbeat(me, 15.0, {})).now > 0
        return False

    await until(beats)


async def test_many_buckets_do_not_use_up_the_prepared_statements(postgres: PostgresSite) -> None:
    owner = await Owner.take(postgres.store)
    connection_of(lane_of(owner)).prepared_max = 8
    for number in range(6):
        high = BUCKET_HIGH + number * SECOND
        bucket = await postgres.store.open_bucket("time", 0, high, high + SECOND)
        commit = owner.fill(owner.commit(bucket=bucket.id), 2, first=number * 10)
        commit.rows = [(LOG, row("a", number))]
        await owner.write(commit)
    assert len(await postgres.states()) == 12


# -- claims and zombies (I4) -------------------------------------------------------------------


async def test_a_zombie_with_an_open_transaction_is_ended_and_fenced(
    postgres: PostgresSite,
) -> None:
    """A stopped process holds its share lock; its successor may neither wait nor be undone."""
    store = await postgres.another()
    zombie = await Owner.take(store)
    await store.heartbeat(zombie.worker, 60.0, {})
    lane = lane_of(zombie)
    connection = connection_of(lane)
    commit = zombie.fill(zombie.commit(), 2)
    await connection.execute("BEGIN")
    await lane._append(connection, commit)  # the process is stopped here
    before = await look(postgres, zombie)
    successor = await Owner.take(postgres.store, await deploy(postgres.store))
    with pytest.raises(psycopg.OperationalError):
        await connection.execute("COMMIT")  # and wakes up
    assert await look(postgres, zombie) == before
    zombie.lane = await store.open_lane()
    with pytest.raises(Fenced):
        await zombie.lane.commit(commit)
    await successor.write(successor.fill(successor.commit(), 2))
    assert len(await postgres.states()) == 2


@pytest.mark.parametrize("count", [1, ARRAY_ROWS])
async def test_a_commit_that_meets_a_claim_waits_for_it_and_is_fenced(
    postgres: PostgresSite, count: int
) -> None:
    owner = await Owner.take(postgres.store)
    before = await look(postgres, owner)
    statements = Statements(postgres.schema.name)
    async with session(postgres.schema) as claimer:
        await claimer.execute(
            statements.get("claim_intervals"),
            {
                "interval_ids": [r.id for r in owner.intervals],
                "owner": str(uuid.uuid4()),
                "sequence": f"{postgres.schema.name}.sequence_number",
            },
        )
        task = asyncio.create_task(_outcome(owner, owner.fill(owner.commit(), count)))
        await until(lambda: waiting_for_a_lock(postgres))
        await claimer.commit()
    assert await task is Fenced
    assert await look(postgres, owner) == before


async def test_a_claim_waits_for_the_commit_before_it_and_reads_it(postgres: PostgresSite) -> None:
    owner = await Owner.take(postgres.store)
    successor = await postgres.another()
    lane = lane_of(owner)
    commit = owner.commit()
    await connection_of(lane).execute("BEGIN")
    await lane._append(connection_of(lane), commit)
    ids = [r.id for r in owner.intervals]
    task = asyncio.create_task(successor.claim(str(uuid.uuid4()), ids))
    await until(lambda: waiting_for_a_lock(postgres))
    await connection_of(lane).execute("COMMIT")
    assert [claim.n for claim in await task] == [1, 1]


async def sessions(store: PostgresStore, number: int) -> set[int]:
    """So many connections of the pool at a time; gives their server processes."""
    async with AsyncExitStack() as stack:
        return {
            (await stack.enter_async_context(store.connections.connection())).info.backend_pid
            for _ in range(number)
        }


async def test_successors_are_told_of_each_connection_at_once(postgres: PostgresSite) -> None:
    """One that was opened just before its worker hangs may be in a fold, and a claim waits for
    it."""
    worker = str(uuid.uuid4())
    await postgres.store.register_worker(worker, 60.0)
    lane = await postgres.store.open_lane()
    found = await sessions(postgres.store, 3)
    assert lane.backend is not None
    ((told,),) = await postgres.query("SELECT backends FROM {worker}", worker="worker")
    assert found | {lane.backend[0]} <= {pid for pid, _ in told}
    await lane.close()


async def test_a_claim_of_ones_own_does_not_wait_for_a_line_that_was_cut(schema: Schema) -> None:
    """At its other end a fold of ours stands idle and holds the interval until the server's
    patience is over, which is a minute."""
    async with (
        Wire(schema.url) as wire,
        contextlib.aclosing(await PostgresSite.open(replace(schema, url=wire.url))) as site,
    ):
        owner = await Owner.take(site.store)
        await owner.write(owner.fill(owner.commit(), 3))
        row_ = owner.intervals[0]
        wire.hang = b"state_change"
        with pytest.raises(StoreUnavailable):
            await site.store.fold(row_.id, owner.links[row_.id].sequencer, 0, 1)
        wire.hang = None
        async with site.store.connections.connection() as used, asyncio.timeout(8):
            (claim,) = await site.store.claim(owner.worker, [row_.id], again=True)
            await used.execute("SELECT 1")  # no other is ended
        assert claim.folded == 0


async def test_only_the_very_process_that_was_recorded_is_ended(postgres: PostgresSite) -> None:
    owner = await Owner.take(postgres.store)
    lane = lane_of(owner)
    assert lane.backend is not None
    pid, started = lane.backend
    await postgres.store.end_backends([(pid, started.replace("20", "19", 1)), (pid + 1, started)])
    await owner.write(owner.commit())
    await postgres.store.end_backends([(pid, started)])
    assert await _outcome(owner, owner.commit()) in (StoreUnavailable, CommitUnknown)


async def test_a_worker_is_dead_only_if_its_process_is_known_to_be_gone(
    postgres: PostgresSite,
) -> None:
    host, pid, started = process_identity()
    me = OtherWorker(str(uuid.uuid4()), host, pid, started, [], 10.0)
    assert not postgres.store.is_dead(me)
    assert not postgres.store.is_dead(replace(me, host=f"{host} elsewhere", pid=2**22 + 1))
    assert postgres.store.is_dead(replace(me, pid=2**22 + 1))
    if started:
        assert postgres.store.is_dead(replace(me, pid_started=f"{started}0"))
    gone = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await gone.wait()
    assert postgres.store.is_dead(replace(me, pid=gone.pid))


async def test_an_ended_worker_loses_its_connections(postgres: PostgresSite) -> None:
    store = await postgres.another()
    owner = await Owner.take(store)
    await store.heartbeat(owner.worker, 60.0, {})
    (other,) = await postgres.store.other_workers(str(uuid.uuid4()))
    assert lane_of(owner).backend in [tuple(b) for b in other.backends]
    await postgres.store.end_worker(other)
    assert await _outcome(owner, owner.commit()) in (StoreUnavailable, CommitUnknown)


# -- errors: whose fault ------------------------------------------------------------------------


def _long_text(length: int) -> str:
    """Text that does not compress: an index cannot hold much of it."""
    letters = random.Random(7)
    return "".join(letters.choices(string.ascii_letters + string.digits, k=length))


USER_FAULTS: list[tuple[str, Sequence[Any]]] = [
    ("SELECT 1 / 0", ()),
    ("SELECT 1 / %s::integer", (0,)),
    ("INSERT INTO nowhere VALUES (1)", ()),
    ("SELEC", ()),
    ("SELECT %s, %s", (1,)),
    ("SELECT 5 % 2", (1,)),
    ("SELECT %s::text", ("NUL \0",)),
    ("SELECT %s::text", ("\ud800",)),
    ("SELECT %s::bigint", (2**63,)),
    ("SELECT %s", (object(),)),
    ("SELECT %s::jsonb", ("{",)),
    ("SELECT '\\u0000'::jsonb", ()),
    ("INSERT INTO counts (word, count) VALUES ('a', 1), ('a', 1)", ()),
    ("INSERT INTO counts (word, count) VALUES (%s, 1)", (_long_text(9000),)),
    ("INSERT INTO counts (word, count) VALUES ('a', 1); COMMIT", ()),
    ("INSERT INTO counts (word, count) VALUES ('a', 1); SELECT 1", ()),
    ("SELECT 1; ROLLBACK", ()),
    ("SELECT '(0,0)'::point FOR UPDATE OF nothing", ()),
    ("UPDATE no_other.database SET x = 1", ()),
    ("SELECT other.a.b.c FROM other.a.b.c", ()),
]


async def test_a_statement_that_cannot_work_is_its_authors_fault(postgres: PostgresSite) -> None:
    """Otherwise its bundle would be tried again for ever, or the worker would stop."""
    owner = await Owner.take(postgres.store)
    before = await look(postgres, owner)
    for number, (statement, params) in enumerate(USER_FAULTS):
        commit = owner.fill(owner.commit(), ARRAY_ROWS if number % 2 else 1)
        commit.statements = [("SELECT 1", ()), (statement, params)]
        with pytest.raises(StatementError):
            await owner.lane.commit(commit)
        assert await look(postgres, owner) == before, statement
    await owner.write(owner.fill(owner.commit(), 1))


async def test_rows_that_cannot_be_written_are_their_authors_fault(postgres: PostgresSite) -> None:
    owner = await Owner.take(postgres.store)
    before = await look(postgres, owner)
    cases: list[list[tuple[Any, ...]]] = [
        [row("\0", 1)],
        [row("\ud800", 1)],
        [row(_long_text(9000), 1)],
        [row("a", 1), (1, 1, None, None, None)],
        [([], 1, None, None, None)],
        [row("a", 1, share="much"), row("b", 1, share=0.5)],
        [row("a", 1, share=10**400), row("b", 1, share=0.5)],
        [("a", 1, None, None, "{no json")],
    ]
    for bad in cases:
        commit = owner.fill(owner.commit(), 1)
        commit.rows = [(COUNTS, values) for values in bad]
        with pytest.raises(StatementError):
            await owner.lane.commit(commit)
        assert await look(postgres, owner) == before
    await owner.write(owner.fill(owner.commit(), 1))


async def test_what_fails_only_at_commit_is_the_users_fault_too(postgres: PostgresSite) -> None:
    owner = await Owner.take(postgres.store)
    await postgres.query(
        'ALTER TABLE {log} ADD CONSTRAINT "once" UNIQUE (word) DEFERRABLE INITIALLY DEFERRED',
        log="order",
    )
    commit = owner.fill(owner.commit(), 1)
    commit.rows = [(LOG, row("a", 1)), (LOG, row("a", 2))]
    with pytest.raises(StatementError, match="deferred"):
        await owner.lane.commit(commit)
    assert await postgres.states() == []
    commit.rows.pop()
    await owner.write(commit)


async def test_a_users_statement_finds_the_tables_of_its_pipeline(postgres: PostgresSite) -> None:
    owner = await Owner.take(postgres.store)
    commit = owner.commit()
    commit.statements = [
        ("INSERT INTO counts (word, count) VALUES (%s, %s)", ("a", 1)),
        ("UPDATE counts SET count = count + 1 WHERE word = 'a'", ()),
        ("UPDATE counts SET note = '100 %'", ()),
        ("DELETE FROM counts WHERE count %% 2 = %s", (1,)),
        ("DELETE FROM counts WHERE count % 2 = 1", ()),
    ]
    await owner.write(commit)
    assert await postgres.rows(COUNTS) == [row("a", 2, note="100 %")]


@pytest.mark.parametrize(
    ("state", "mine", "users"),
    [
        ("08006", StoreUnavailable, StoreUnavailable),
        ("25006", StoreUnavailable, StoreUnavailable),
        ("40001", StoreUnavailable, StatementRace),
        ("40P01", StoreUnavailable, StatementRace),
        ("53100", StoreUnavailable, StoreUnavailable),
        ("55P03", StoreUnavailable, StatementRace),
        ("57P01", StoreUnavailable, StoreUnavailable),
        ("57P03", StoreUnavailable, StoreUnavailable),
        ("55000", StoreUnavailable, StatementError),
        ("57014", StoreUnavailable, StatementError),
        ("58030", StoreUnavailable, StatementError),
        ("25P01", StoreUnavailable, StatementError),
        ("38000", StoreError, StatementError),
        ("HV001", StoreError, StatementError),
        ("22012", StoreError, StatementError),
        ("23505", StoreError, StatementError),
        ("42P01", StoreError, StatementError),
        ("54000", StoreError, StatementError),
        ("P0001", StoreError, StatementError),
        ("0A000", StoreError, StatementError),
        ("XX000", StoreError, StatementError),
    ],
)
def test_errors_are_told_apart_by_sqlstate(
    state: str, mine: type[Exception], users: type[Exception]
) -> None:
    error = psycopg.errors.lookup(state)("it failed")
    assert type(translate(error)) is mine
    assert type(translate(error, user="the statement")) is users
    assert isinstance(translate(error, user="the statement", alive=False), StoreUnavailable)


@pytest.mark.parametrize("alive", [True, False])
def test_an_sqlstate_of_the_users_own_counts_against_the_record(alive: bool) -> None:
    """RAISE EXCEPTION ... USING ERRCODE = 'MW001'."""

    class Own(psycopg.DatabaseError):
        sqlstate = "MW001"

    found = translate(Own("no sevens"), user="the statement", alive=alive)
    assert type(found) is (StatementError if alive else StoreUnavailable)


# -- buckets and readers --------------------------------------------------------------------------


async def _droppable(site: PostgresSite, owner: Owner) -> Bucket:
    """A time bucket that nothing needs any more."""
    await owner.write(owner.fill(owner.commit(), 3))
    (old,) = await site.store.live_buckets()
    new = await site.store.open_bucket("time", 0, old.high, old.high + 3600 * SECOND)
    owner.stamp = new.low
    await owner.write(owner.commit(owner.injector, bucket=new.id))
    await owner.write(owner.commit(bucket=new.id))
    for row_ in owner.deployment.intervals:
        link = owner.links[row_.id]
        assert await site.store.fold(row_.id, link.sequencer, 0, link.n)
    assert await site.store.advance_gc_watermark() >= old.high
    return old


async def test_a_bucket_is_not_dropped_under_a_reader_and_nobody_waits(
    postgres: PostgresSite,
) -> None:
    owner = await Owner.take(postgres.store)
    old = await _droppable(postgres, owner)
    patient = PostgresStore(
        postgres.schema.url, postgres.schema.name, lock_timeout_milliseconds=120_000
    )
    await patient.open()
    async with session(postgres.schema) as reader:
        await reader.execute(
            postgres.schema.compose("LOCK TABLE {p} IN ACCESS SHARE MODE", p=f"production_{old.id}")
        )
        async with asyncio.timeout(60):
            assert not await postgres.store.drop_bucket(old)
        dropping = asyncio.create_task(patient.drop_bucket(old))
        await until(lambda: waiting_for_a_lock(postgres))
        async with asyncio.timeout(60):
            await owner.write(owner.fill(owner.commit(), 3, first=10))
            await owner.write(owner.fill(owner.commit(), ARRAY_ROWS, first=20))
            await postgres.store.open_bucket("time", 0, BUCKET_HIGH * 2, BUCKET_HIGH * 2 + 1)
        assert not dropping.done()
        await reader.rollback()
        assert await dropping
    assert old not in await postgres.store.live_buckets()
    await patient.close()


async def test_a_bucket_is_opened_beside_a_reader_of_everything(postgres: PostgresSite) -> None:
    """CREATE … PARTITION OF would queue behind him, and everybody behind that."""
    await deploy(postgres.store)
    async with session(postgres.schema) as reader:
        await read_states(reader, postgres.schema)
        await read_pending(reader, postgres.schema)
        async with asyncio.timeout(60):
            await postgres.store.open_bucket("time", 0, BUCKET_HIGH, BUCKET_HIGH + 1)
            await postgres.store.open_bucket("source", 1, 0, 10)


async def test_no_sample_is_taken_of_the_arrays_in_a_bucket(postgres: PostgresSite) -> None:
    """An analysis of 250 MB of them took 4 seconds of a core, a few times for each bucket."""
    owner = await Owner.take(postgres.store)
    _, bucket = await _fill_tables(postgres, owner)
    await postgres.query("ANALYZE")
    cursor = await postgres.reader.execute(
        "SELECT attname FROM pg_stats WHERE schemaname = %s AND tablename = %s ORDER BY attname",
        [postgres.schema.name, f"production_{bucket.id}"],
    )
    found = [name for (name,) in await cursor.fetchall()]
    assert found == ["first", "last", "log", "receiver", "stamp", "stream", "version"]


LOCKS = {
    "who makes one": "LOCK TABLE {bucket} IN EXCLUSIVE MODE",
    "an ANALYZE that takes long": "LOCK TABLE {commits} IN SHARE UPDATE EXCLUSIVE MODE",
}


@pytest.mark.parametrize("who", LOCKS)
async def test_nobody_waits_long_for_the_buckets(postgres: PostgresSite, who: str) -> None:
    """The heartbeat comes behind them: a worker that waited would lose its lease, and whoever came
    next would wait as long."""
    await deploy(postgres.store)
    before = await postgres.store.live_buckets()
    other = await postgres.another()
    async with session(postgres.schema) as holder:
        commits = postgres.schema.table("commit_record").as_string(None)
        bucket = postgres.schema.table("bucket").as_string(None)
        await holder.execute(LOCKS[who].format(commits=commits, bucket=bucket))
        async with asyncio.timeout(60):
            opened = await asyncio.gather(
                postgres.store.open_bucket("time", 0, BUCKET_HIGH, BUCKET_HIGH + 1),
                other.open_bucket("time", 0, BUCKET_HIGH, BUCKET_HIGH + 1),
                return_exceptions=True,
            )
        assert [type(each) for each in opened] == [StoreUnavailable] * 2
        assert "pg_stat_activity" in str(opened[0])
        if who == "who makes one":
            async with asyncio.timeout(60):
                with pytest.raises(StoreUnavailable):
                    await postgres.store.view_buckets()
                with pytest.raises(StoreUnavailable):
                    await postgres.store.close_bucket(before[0].id, BUCKET_HIGH - 1)
        else:
            assert (await postgres.store.view_buckets()).buckets == before
        await holder.execute("SELECT pg_advisory_unlock_all()")
    made = await postgres.store.open_bucket("time", 0, BUCKET_HIGH, BUCKET_HIGH + 1)
    assert await postgres.store.live_buckets() == [*before, made]


async def test_a_reader_that_locked_before_its_snapshot_keeps_its_rows(
    postgres: PostgresSite,
) -> None:
    owner = await Owner.take(postgres.store)
    schema = postgres.schema
    parents = ["production", "state_change", "timer_change", "commit_record", *SEEN]
    await owner.write(owner.fill(owner.commit(), 5, first=50))
    async with session(schema) as reader:
        await reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        names = sql.SQL(", ").join(map(schema.table, parents))
        await reader.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(names))
        first = await read_states(reader, schema), await read_pending(reader, schema)
        assert len(first[0]) == 5
        acked = msgspec.json.encode({str(owner.log()): [5, []]})
        await owner.write(owner.commit(owner.intervals[0], acked=acked))
        old = await _droppable(postgres, owner)
        assert not await postgres.store.drop_bucket(old)
        assert (await read_states(reader, schema), await read_pending(reader, schema)) == first
        assert await postgres.store.oldest_snapshot_seconds() > 0.0
    assert await postgres.store.drop_bucket(old)


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("locks", [True, False])
async def test_a_session_that_locks_the_views_first_sees_all_of_its_moment(
    postgres: PostgresSite, level: str, locks: bool
) -> None:
    """Without the lock, rows of a bucket that is dropped before it is read are missing."""
    owner = await Owner.take(postgres.store)
    schema = postgres.schema
    await owner.write(owner.fill(owner.commit(), 5, first=50))
    async with session(schema) as reader:
        await reader.execute(f"BEGIN ISOLATION LEVEL {level} READ ONLY")
        if locks:
            views = sql.SQL(", ").join(map(schema.table, ["states", "pending_productions"]))
            await reader.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(views))
        await reader.execute("SELECT 1")
        old = await _droppable(postgres, owner)
        assert await postgres.store.drop_bucket(old) is not locks
        found = await read_states(reader, schema), await read_pending(reader, schema)
    assert [len(rows) for rows in found] == ([5, 5] if locks else [0, 0])


@pytest.mark.parametrize("way", ["millwheel sql", "from Python"])
async def test_a_snapshot_of_several_statements_keeps_its_rows(
    postgres: PostgresSite, way: str
) -> None:
    """The reader locks nothing himself."""
    owner = await Owner.take(postgres.store)
    await owner.write(owner.fill(owner.commit(), 5, first=50))
    loop, schema = asyncio.get_running_loop(), postgres.schema
    counts = ["SELECT count(*) FROM states", "SELECT count(*) FROM pending_productions"]

    async def drop() -> bool:
        return await postgres.store.drop_bucket(await _droppable(postgres, owner))

    def try_to_drop() -> None:
        assert not asyncio.run_coroutine_threadsafe(drop(), loop).result(60)

    def look() -> list[Any]:
        found: list[Any] = []
        if way == "from Python":
            with snapshot.snapshot(schema.url, schema.name) as connection:
                try_to_drop()
                for text in counts:
                    found += connection.execute(text).fetchall()
        else:
            asked = ["SELECT 0", *counts]
            with selection.select(
                schema.url, asked, pipeline=schema.name, seconds=60, as_json=True
            ) as answers:
                assert list(next(answers).rows) == [(0,)]
                try_to_drop()
                for answer in answers:
                    found += answer.rows
        return found

    assert await asyncio.to_thread(look) == [(5,), (5,)]


async def test_an_old_snapshot_is_noticed(postgres: PostgresSite) -> None:
    await deploy(postgres.store)
    async with session(postgres.schema) as reader:
        await reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await reader.execute("SELECT 1")
        await postgres.query("SELECT pg_sleep(0.05)")
        assert 0.05 <= await postgres.store.oldest_snapshot_seconds() < 60.0


# -- folds, killed at any moment (I15) -------------------------------------------------------------


class Watched(Statements):
    """Statements that tell before they are used."""

    def __init__(self, schema: str) -> None:
        super().__init__(schema)
        self.before: Callable[[str], None] = lambda name: None

    def get(self, name: str, **tables: str) -> str:
        self.before(name)
        return super().get(name, **tables)


KEYS = ("a", "b", ("c", 1))
ENTRIES = ("", "m/1", "m/2")
TAGS = ("", "t")
FOLD_STEPS = ("advance_fold", "fold_states", "fold_timers", "commit", "answer")


@dataclass
class Model:
    """What every reader must see."""

    states: dict[tuple[Any, str], Any] = field(default_factory=dict)
    timers: dict[tuple[Any, str], int] = field(default_factory=dict)
    sent: dict[int, list[int]] = field(default_factory=dict)
    """Per interval: the stamps of its productions; their seq are positions in it."""
    acked: dict[int, int] = field(default_factory=dict)
    """Per interval: the first one that is not acknowledged."""
    beyond: dict[int, set[int]] = field(default_factory=dict)

    def pending(self, interval: int) -> list[int]:
        return [
            seq
            for seq in range(self.acked[interval], len(self.sent[interval]))
            if seq not in self.beyond[interval]
        ]


@dataclass(frozen=True)
class Write:
    """A commit of one interval."""

    interval: int
    states: list[tuple[int, int, int | None]]
    timers: list[tuple[int, int, int | None]]
    productions: int
    acks: list[int]


@dataclass(frozen=True)
class Fold:
    """A fold of some of the commits not folded yet, ended before the given step, if any."""

    interval: int
    share: float
    killed: str | None


@dataclass(frozen=True)
class Turn:
    """Claim again, or let a bucket begin or go."""

    what: str


small = st.integers(0, 2)
values = st.none() | st.integers(0, 9)
writes = st.builds(
    Write,
    st.integers(0, 1),
    st.lists(st.tuples(small, small, values), max_size=6),
    st.lists(st.tuples(small, st.integers(0, 1), values), max_size=4),
    st.integers(0, 3),
    st.lists(st.integers(0, 5), max_size=3),
)
folds = st.builds(
    Fold, st.integers(0, 1), st.sampled_from([0.5, 1.0]), st.none() | st.sampled_from(FOLD_STEPS)
)
turns = st.builds(Turn, st.sampled_from(["claim", "next bucket", "drop"]))


class Trial:
    """One history, with a look from outside after each step and between a fold's statements."""

    def __init__(self, site: PostgresSite, owner: Owner, watched: Watched) -> None:
        self.site = site
        self.owner = owner
        self.watched = watched
        self.model = Model()
        self.known = dict.fromkeys((r.id for r in owner.intervals), 0)
        """How far the owner knows its intervals to be folded."""
        for number in (0, 1):
            self.model.sent[number] = []
            self.model.acked[number] = 0
            self.model.beyond[number] = set()
        self.logs = [owner.log(row_) for row_ in owner.intervals]
        self.watcher = psycopg.connect(site.schema.url, autocommit=True)

    async def check(self) -> None:
        """Each view shows the model."""
        states = {(_key(s.key), s.entry): s.value for s in await self.site.states()}
        assert states == self.model.states
        timers = {(_key(t.key), t.tag): t.due - START for t in await self.site.timers()}
        assert timers == self.model.timers
        pending = [
            (self.logs[number], seq) for number in (0, 1) for seq in self.model.pending(number)
        ]
        assert await self.site.pending() == sorted(pending)

    def check_now(self) -> None:
        """The same, in the middle of something."""
        query = self.site.schema.compose(
            "SELECT (SELECT jsonb_agg(jsonb_build_array(key, entry, value)) FROM {states}), "
            "(SELECT jsonb_agg(jsonb_build_array(key, tag)) FROM {timers}), "
            "(SELECT count(*) FROM {pending})",
            states="states",
            timers="timers",
            pending="pending_productions",
        )
        found = self.watcher.execute(query).fetchone()
        assert found is not None
        states, timers, pending = found
        assert {(_key(k), e): v for k, e, v in states or ()} == self.model.states
        assert {(_key(k), tag) for k, tag in timers or ()} == set(self.model.timers)
        assert pending == sum(len(self.model.pending(number)) for number in (0, 1))

    async def take(self, step: Write | Fold | Turn) -> None:
        if isinstance(step, Write):
            await self.write(step)
        elif isinstance(step, Fold):
            await self.fold(step)
        elif step.what == "claim":
            # The sequencers change, the logs of before stay; productions go on in those.
            await self.owner.claim(*self.owner.intervals)
            for row_ in self.owner.intervals:
                assert self.owner.claims[row_.id].folded >= self.known[row_.id]
        elif step.what == "next bucket":
            last = max(b.high for b in await self.site.store.live_buckets())
            self.owner.stamp = last
            bucket = await self.site.store.open_bucket("time", 0, last, last + 3600 * SECOND)
            await self.owner.write(self.owner.commit(self.owner.injector, bucket=bucket.id))
        else:
            await self.site.store.advance_gc_watermark()
            *old, _ = await self.site.store.live_buckets()
            for bucket in old:
                if not await self.site.store.drop_bucket(bucket):
                    break
        await self.check()

    async def write(self, step: Write) -> None:
        owner, model, number = self.owner, self.model, step.interval
        row_ = owner.intervals[number]
        for ack in step.acks:
            seq = model.acked[number] + ack
            if seq < len(model.sent[number]):
                model.beyond[number].add(seq)
        while model.acked[number] in model.beyond[number]:
            model.beyond[number].discard(model.acked[number])
            model.acked[number] += 1
        runs = [[seq, seq] for seq in sorted(model.beyond[number])]
        acked = msgspec.json.encode({str(self.logs[number]): [model.acked[number], runs]})
        commit = owner.commit(row_, acked=acked)
        states = {(KEYS[k], ENTRIES[e]): value for k, e, value in step.states}
        for (key, entry), value in states.items():
            if owner.interval_of(key) is row_:
                commit.states = [*commit.states, owner.state(key, value, entry)]
                model.states[key, entry] = value
        timers = {(KEYS[k], TAGS[t]): due for k, t, due in step.timers}
        for (key, tag), due in timers.items():
            if owner.interval_of(key) is row_:
                at = None if due is None else START + due
                commit.timers = [*commit.timers, owner.timer(key, at, tag)]
                model.timers[key, tag] = due  # type: ignore[assignment]
        model.states = {name: value for name, value in model.states.items() if value is not None}
        model.timers = {name: due for name, due in model.timers.items() if due is not None}
        for _ in range(step.productions):
            production = owner.production("x", 0)
            production.log, production.seq = self.logs[number], len(model.sent[number])
            commit.productions = [*commit.productions, production]
            model.sent[number].append(production.stamp)
        unacked = [model.sent[number][seq] for seq in model.pending(number)]
        commit.intervals[0].floor = min(unacked, default=commit.stamp)
        await owner.write(commit)

    async def fold(self, step: Fold) -> None:
        row_ = self.owner.intervals[step.interval]
        link = self.owner.links[row_.id]
        after = self.known[row_.id]
        through = after + max(1, int((link.n - after) * step.share))
        if through > link.n:
            return
        killed = step.killed

        def before(name: str) -> None:
            if name in FOLD_STEPS:
                self.check_now()
            if name == killed:
                self.kill()

        self.watched.before = before
        self.arm(killed == "commit")
        try:
            folded = await self.site.store.fold(row_.id, link.sequencer, after, through)
        except StoreUnavailable:
            assert killed not in (None, "answer")
        else:
            if not folded:  # a fold before this one went as far, and its answer was lost
                ((stored,),) = await self.site.query(
                    "SELECT through FROM {fold} WHERE interval_id = %s", row_.id, fold="fold"
                )
                assert stored >= through
            if folded and killed != "answer":
                self.known[row_.id] = through
        finally:
            self.watched.before = lambda name: None
            self.arm(False)

    def arm(self, armed: bool) -> None:
        """Whether the next fold's session ends while it commits."""
        self.watcher.execute(
            self.site.schema.compose("UPDATE {doom} SET armed = %s", doom="doom"), [armed]
        )

    def kill(self) -> None:
        """End the sessions of the store that are in a transaction."""
        self.watcher.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE application_name = %s AND state = 'idle in transaction'",
            [f"millwheel {self.site.schema.name}"],
        )


def _key(key: Any) -> Any:
    return tuple(key) if isinstance(key, list) else key


DOOM = (
    "CREATE TABLE {doom} (armed boolean)",
    "INSERT INTO {doom} VALUES (false)",
    (
        "CREATE FUNCTION {ends}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF (SELECT armed "
        "FROM {doom}) THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF; RETURN NULL; "
        "END $$"
    ),
    (
        "CREATE CONSTRAINT TRIGGER doom AFTER UPDATE ON {fold} DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION {ends}()"
    ),
)
"""Ends a fold's session while it commits, if armed."""


async def _watch(site: PostgresSite) -> Watched:
    """Let the statements of a site's store be watched, and its folds be ended at COMMIT."""
    for statement in DOOM:
        await site.query(statement, doom="doom", ends="ends", fold="fold")
    watched = Watched(site.schema.name)
    site.store.connections.statements = watched
    return watched


@pytest.mark.parametrize("killed", FOLD_STEPS[:4])
async def test_a_fold_that_is_killed_is_as_if_it_had_never_begun(
    postgres: PostgresSite, killed: str
) -> None:
    watched = await _watch(postgres)
    owner = await Owner.take(postgres.store)
    trial = Trial(postgres, owner, watched)
    number = owner.intervals.index(owner.interval_of("a"))
    add = Write(number, [(0, 0, 1), (0, 1, 2), (0, 2, 3)], [(0, 0, 1), (0, 1, 2)], 2, [0])
    change = Write(number, [(0, 0, 4), (0, 1, None)], [(0, 0, None)], 1, [1])
    try:
        for step in (add, Fold(number, 1.0, None), change, Fold(number, 1.0, killed)):
            await trial.take(step)
        assert trial.known[owner.intervals[number].id] == 1
        await trial.take(Fold(number, 1.0, None))
        assert trial.known[owner.intervals[number].id] == 2
    finally:
        trial.watcher.close()


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=st.lists(st.one_of(writes, writes, folds, folds, turns), min_size=6, max_size=24))
@pytest.mark.parametrize("version", [15, 18])
async def test_no_reader_ever_sees_a_fold(
    new_schema: Callable[[int], Schema], version: int, steps: list[Write | Fold | Turn]
) -> None:
    site = await PostgresSite.open(new_schema(version))
    watched = await _watch(site)
    owner = await Owner.take(site.store)
    trial = Trial(site, owner, watched)
    try:
        for step in steps:
            await trial.take(step)
        claims = await owner.claim(*owner.intervals)
        for claim in claims:
            assert await site.store.fold(
                claim.interval.id, claim.interval.sequencer, claim.folded, claim.n
            )
        await trial.check()
        (entries,) = await site.store.load_keys(
            owner.computation, [(encode_key("a")[1], b'"a"')], 10
        )
        assert {e: msgspec.json.decode(v) for e, v, _ in entries} == {
            entry: value for (key, entry), value in trial.model.states.items() if key == "a"
        }
    finally:
        trial.watcher.close()
        await site.aclose()


async def test_a_row_cannot_hold_productions_with_a_gap(postgres: PostgresSite) -> None:
    owner = await Owner.take(postgres.store)
    commit = owner.commit()
    made = [owner.production(f"key {n}", n) for n in range(4)]
    commit.productions = as_chunks([*made[:2], made[3]])
    with pytest.raises(InvariantBroken, match="not consecutive"):
        await owner.lane.commit(commit)


async def test_large_values_are_in_few_rows_and_come_back(postgres: PostgresSite) -> None:
    """A row of columns has a MiB of values, so that a look at the end of a log reads no more."""
    owner = await Owner.take(postgres.store)
    mine = owner.intervals[0]
    commit = owner.commit(mine)
    made = [owner.production(f"key {n}", n % 7 * 60_000 * "x") for n in range(60)]
    commit.productions = as_chunks(made)
    (run, *more) = (owner.state(f"key {n}", n % 7 * 60_000 * "y") for n in range(60))
    commit.states = [
        run._replace(
            slots=[part.slots[0] for part in (run, *more)],
            keys=[part.keys[0] for part in (run, *more)],
            values=[part.values[0] for part in (run, *more)],
        )
    ]
    await owner.write(commit)
    sent = [p.value async for p in postgres.store.read_productions(owner.log(), 30)]
    assert sent == [production.encoded for production in made if production.seq >= 30]
    assert len(await postgres.states()) == 60
    for table in ("production", "state_change"):
        ((rows, most),) = await postgres.query(
            "SELECT count(*), max((SELECT sum(length(v::text)) FROM unnest(values) AS v))::bigint "
            "FROM {t}",
            t=table,
        )
        assert 11 <= rows <= 20
        assert most <= ROW_BYTES


async def test_long_keys_and_entries_can_be_folded(postgres: PostgresSite) -> None:
    """An index row holds 2.7 kB: a longer key would be durable, and stop every fold after it."""
    owner = await Owner.take(postgres.store)
    key, entry = _long_text(1300), _long_text(1300)
    commit = owner.commit(owner.interval_of(key))
    commit.states = [owner.state(key, 1, entry)]
    commit.timers = [owner.timer(key, START, _long_text(1000))]
    await owner.write(commit)
    link = commit.intervals[0]
    assert await postgres.store.fold(link.interval_id, link.sequencer, 0, 1)
    assert [(s.key, s.entry) for s in await postgres.states()] == [(key, entry)]


async def test_a_fold_waits_for_a_claim_and_gives_way_to_it(postgres: PostgresSite) -> None:
    owner = await Owner.take(postgres.store)
    await owner.write(owner.fill(owner.commit(), 3))
    row_ = owner.intervals[0]
    statements = Statements(postgres.schema.name)
    async with session(postgres.schema) as claimer:
        params = {"interval_ids": [row_.id], "owner": str(uuid.uuid4())}
        params["sequence"] = f"{postgres.schema.name}.sequence_number"
        await claimer.execute(statements.get("claim_intervals"), params)
        sequencer = owner.links[row_.id].sequencer
        fold = asyncio.create_task(postgres.store.fold(row_.id, sequencer, 0, 1))
        await until(lambda: waiting_for_a_lock(postgres))
        await claimer.commit()
    assert not await fold
    assert await postgres.query("SELECT count(*) FROM {state}", state="state") == [(0,)]


async def test_numbers_that_code_before_the_runs_would_write_are_refused(
    postgres: PostgresSite,
) -> None:
    """A worker that was not restarted at the migration notes them where nothing looks: it ends."""
    owner = await Owner.take(postgres.store)
    of_source = await postgres.store.open_bucket("source", 7, 0, 1000)
    named = await postgres.store.open_bucket("named", 0, 0, 10)
    for bucket in (owner.commit().bucket, of_source.id, named.id):
        commit = owner.commit()
        rows = [(1, owner.computation, record_id(7, n)) for n in range(3)]
        commit.seen = {bucket: SeenIds(rows)}
        if bucket == named.id:  # ids of users may look the same
            await owner.write(commit)
        else:
            with pytest.raises(StoreError, match="workers_of_older_code_have_to_be_restarted"):
                await owner.lane.commit(commit)


# -- plans -----------------------------------------------------------------------------------------

MANY = 30_000


async def _fill_tables(site: PostgresSite, owner: Owner) -> tuple[Bucket, Bucket]:
    """Two buckets with many rows each, and the current tables as full."""
    (first,) = await site.store.live_buckets()
    second = await site.store.open_bucket("time", 0, first.high, first.high + 3600 * SECOND)
    row_, other = owner.intervals
    for start, bucket in ((0, first), (MANY, second)):
        numbers = f"generate_series({start + 1}, {start + MANY}) AS n"
        for statement in (
            "INSERT INTO {commits} SELECT CASE WHEN n %% 2 = 0 THEN %s ELSE %s END, n, 1, %s, 0, "
            "0, %s, '{{}}', NULL, '{{}}' FROM " + numbers,
            "INSERT INTO {states} SELECT CASE WHEN n %% 2 = 0 THEN %s ELSE %s END, n, 2, 1, "
            "ARRAY[n %% 65536], ARRAY['\"k' || n || '\"'], NULL, ARRAY['1'::jsonb] FROM " + numbers,
            "INSERT INTO {timers} SELECT CASE WHEN n %% 2 = 0 THEN %s ELSE %s END, n, 2, "
            "n %% 65536, '\"k' || n || '\"', 'watermark', '', n, n, n FROM " + numbers,
            "INSERT INTO {productions} SELECT n %% 5 + 100, n, n, 1, 2, 1, %s, ARRAY[n %% 65536], "
            "ARRAY['\"k' || n || '\"'], ARRAY['1'], ARRAY[n], ARRAY[n] FROM " + numbers,
            "INSERT INTO {seen} SELECT n %% 65536, 2, ('f' || substr(md5(n::text), 2))::uuid FROM "
            + numbers,
            "INSERT INTO {runs} SELECT n %% 5, 10 * n + 9, 10 * n, 2 FROM " + numbers,
        ):
            wanted = statement.replace("%%", "").count("%s")
            params = (row_.id, other.id, START, START)[:wanted]
            await site.query(
                statement if params else statement.replace("%%", "%"),
                *params,
                commits=f"commit_record_{bucket.id}",
                states=f"state_change_{bucket.id}",
                timers=f"timer_change_{bucket.id}",
                productions=f"production_{bucket.id}",
                seen=f"seen_record_{bucket.id}",
                runs=f"seen_run_{bucket.id}",
            )
    series = f"generate_series(1, {MANY}) AS n"
    await site.query(
        "INSERT INTO {state} SELECT n %% 65536, 2, '\"k' || n / 3 || '\"', 'm/' || n, '1', %s "
        "FROM " + series,
        1,
        state="state",
    )
    await site.query(
        "INSERT INTO {timer} SELECT n %% 65536, 2, '\"k' || n || '\"', 'watermark', '', n, %s, n "
        "FROM " + series,
        1,
        timer="timer",
    )
    return first, second


def _walk(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for part in plan.get("Plans", ()) for node in _walk(part))]


PLANNED: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    ("load_keys", {"slot": [1, 2, 3], "key": ['"k1"'] * 3, "computation": 2, "limit": 64}, {}),
    ("scan_states", {"slot_from": 0, "slot_to": 4096, "computation": 2, "limit": 4000}, {}),
    ("load_entry", {"slot": 1, "computation": 2, "key": '"k1"', "entry": "m/1"}, {}),
    (
        "scan_entries",
        {"slot": 1, "computation": 2, "key": '"k"', "after": "m/", "before": "m0", "limit": 100},
        {},
    ),
    (
        "look_up_seen",
        {
            "low": [uuid.UUID(int=n) for n in range(20)],
            "high": [uuid.UUID(int=n) for n in range(20)],
            "computation": 2,
        },
        {"table": "seen_record"},
    ),
    (
        "scan_seen",
        {
            "slot": -1,
            "computation": 2,
            "id": uuid.UUID(int=0),
            "slot_from": 9,
            "slot_to": SLOTS,
            "limit": 1000,
        },
        {"table": "seen_record"},
    ),
    ("newest_seen", {"computation": 2}, {"table": "seen_run"}),
    (
        "look_up_numbers",
        {"log": [1, 2], "low": [5, 9], "high": [9, 700], "computation": 2},
        {"table": "seen_run"},
    ),
    (
        "insert_seen_runs",
        {
            "computation": [2],
            "log": [1],
            "first": [7 * MANY],
            "last": [7 * MANY + 9],
            "present": ["1000000001"],
        },
        {"table": "seen_run"},
    ),
    ("read_productions", {"log": 101, "first": MANY, "limit": 100}, {}),
    ("read_last_commits", {"interval_ids": [2, 3]}, {}),
    ("read_state_tail", {"interval_id": 2, "after": 2 * MANY - 50}, {}),
    ("read_interval_history", {"interval_ids": [2, 3]}, {}),
    ("stored_floor", {}, {}),
    ("source_acknowledged", {"log": 3, "high": 100}, {}),
    ("named_acknowledged", {"high": 100}, {}),
    ("open_bundles", {}, {}),
    (
        "sample_states",
        {"names": ["count"], "versions": [2], "most": 9, "slots": [0, 9], "rows": 500},
        {},
    ),
    ("bucket_in_use", {}, {"table": "commit_record"}),
    ("advance_fold", {"interval_id": 2, "sequencer": 1, "after": 0, "through": 9}, {}),
    ("fold_states", {"interval_id": 2, "after": 100, "through": 140}, {}),
    ("fold_timers", {"interval_id": 2, "after": 100, "through": 140}, {}),
    (
        "fence_and_record",
        {
            "rows": '[{"interval_id": 2, "n": 1, "sequencer": 1, "stamp": 1}]',
            "backend": 0,
        },
        {"current": "commit_record", "previous": "commit_record"},
    ),
]
BIG = re.compile(
    "(commit_record|state_change|timer_change|production|seen_record|seen_run)_[0-9]+|state|timer"
)


async def test_no_statement_of_the_hot_path_reads_a_large_table_from_end_to_end(
    postgres: PostgresSite,
) -> None:
    """By the plans for known parameters, and by those that Postgres keeps for any."""
    owner = await Owner.take(postgres.store)
    _, bucket = await _fill_tables(postgres, owner)
    statements = Statements(postgres.schema.name)
    for analyzed in (False, True):  # a young bucket has no statistics yet
        if analyzed:
            await postgres.query("ANALYZE")
        for name, params, tables in PLANNED:
            named = {place: f"{table}_{bucket.id}" for place, table in tables.items()}
            text = statements.get(name, **named)
            for mode in ("force_custom_plan", "force_generic_plan"):
                await postgres.reader.execute(f"SET plan_cache_mode = {mode}")
                plan = await _explain(postgres.reader, text, params)
                for node in _walk(plan):
                    relation = node.get("Relation Name", "")
                    assert not (node["Node Type"] == "Seq Scan" and BIG.fullmatch(relation)), (
                        f"{name} ({mode}, analyzed: {analyzed}) reads all of {relation}:\n"
                        + msgspec.json.format(msgspec.json.encode(plan)).decode()
                    )


async def _explain(
    connection: AsyncConnection[Any], text: str, params: dict[str, Any]
) -> dict[str, Any]:
    """The plan of a prepared statement, under the session's plan_cache_mode."""
    order = list(params)
    for number, name in enumerate(order, 1):
        text = text.replace(f"%({name})s", f"${number}")
    await connection.execute(b"PREPARE guarded AS " + text.encode())
    try:
        arguments = sql.SQL(", ").join(sql.Literal(params[name]) for name in order)
        execute = sql.SQL("EXECUTE guarded({})" if order else "EXECUTE guarded").format(arguments)
        cursor = await connection.execute(sql.SQL("EXPLAIN (FORMAT JSON) {}").format(execute))
        found = await cursor.fetchone()
        assert found is not None
        plan: dict[str, Any] = found[0][0]["Plan"]
        return plan
    finally:
        await connection.execute("DEALLOCATE guarded")


async def test_the_views_read_the_tail_by_its_index(postgres: PostgresSite) -> None:
    owner = await Owner.take(postgres.store)
    await _fill_tables(postgres, owner)
    await postgres.query("UPDATE {fold} SET through = %s", 2 * MANY - 20, fold="fold")
    await postgres.query("ANALYZE")
    for view in ("latest_commits", "states", "timers", "pending_productions", "watermarks"):
        cursor = await postgres.reader.execute(
            postgres.schema.compose("EXPLAIN (FORMAT JSON) SELECT * FROM {view}", view=view)
        )
        found = await cursor.fetchone()
        assert found is not None
        for node in _walk(found[0][0]["Plan"]):
            relation = node.get("Relation Name", "")
            large = BIG.fullmatch(relation) and relation not in ("state", "timer")
            assert not (node["Node Type"] == "Seq Scan" and large), (
                f"{view} reads all of {relation}:\n"
                + msgspec.json.format(msgspec.json.encode(found[0][0])).decode()
            )


async def test_every_connection_keeps_its_search_path_narrow(postgres: PostgresSite) -> None:
    owner = await Owner.take(postgres.store)
    async with postgres.store.connections.connection() as connection:
        cursor = await connection.execute("SHOW search_path")
        assert await cursor.fetchone() == ('""',) or (await cursor.fetchone()) is None
    cursor = await connection_of(lane_of(owner)).execute("SHOW search_path")
    assert await cursor.fetchone() == (f'"{postgres.schema.name}","public"',)


async def test_times_survive_a_server_of_another_zone(postgres: PostgresSite) -> None:
    table = Table("at_night", Counted)
    await postgres.query("ALTER DATABASE millwheel SET timezone = 'Asia/Kathmandu'")
    try:
        store = await postgres.another()
        owner = await Owner.take(store, await deploy(store, tables=(table, COUNTS, LOG)))
        commit = owner.commit()
        commit.timers = [owner.timer("a", START)]
        await owner.write(commit)
        assert [t.due for t in await postgres.timers()] == [START]
    finally:
        await postgres.query("ALTER DATABASE millwheel RESET timezone")


async def test_a_database_that_sees_one_snapshot_a_transaction_changes_nothing(
    postgres: PostgresSite,
) -> None:
    """Who waits for a lock has to see what came of it, whatever the database's default is."""
    await deploy(postgres.store)
    await postgres.query(
        "ALTER ROLE CURRENT_USER SET default_transaction_isolation = 'repeatable read'"
    )
    try:
        stores = [await postgres.another() for _ in range(2)]
        made = await asyncio.gather(
            *(store.open_bucket("named", 0, 0, 100) for store in stores for _ in range(2))
        )
        assert len({bucket.id for bucket in made}) == 1
        lane = await stores[0].open_lane()
        cursor = await connection_of(lane).execute("SHOW transaction_isolation")
        assert await cursor.fetchone() == ("read committed",)
        await lane.close()
    finally:
        await postgres.query("ALTER ROLE CURRENT_USER RESET default_transaction_isolation")


async def test_whoever_stops_while_he_drops_a_bucket_does_not_hold_up_others_for_long(
    postgres: PostgresSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody who reads the parents waits for him: claims, folds, views."""
    await deploy(postgres.store)
    (bucket,) = await postgres.store.live_buckets()
    found = []

    async def note(connection: AsyncConnection[Any], _: Bucket) -> bool:
        cursor = await connection.execute("SHOW idle_in_transaction_session_timeout")
        found.append(await cursor.fetchone())
        return False

    monkeypatch.setattr(postgres.store, "_is_droppable", note)
    assert not await postgres.store.drop_bucket(bucket)
    assert found == [("5s",)]


async def test_a_look_sees_what_stood_in_a_bucket_that_is_dropped_meanwhile(
    postgres: PostgresSite,
) -> None:
    """Whoever drops a bucket looks at what is newest, not at the snapshots of others."""
    owner = await Owner.take(postgres.store)
    first, *_ = await postgres.store.live_buckets()
    with inspection.inspect(postgres.schema.url) as looking:
        before = looking.pipelines()
        second = await postgres.store.open_bucket("time", 0, BUCKET_HIGH, BUCKET_HIGH + SECOND)
        owner.stamp = BUCKET_HIGH
        await owner.write(
            owner.commit(*owner.deployment.intervals, bucket=second.id, floor=BUCKET_HIGH)
        )
        for row in owner.deployment.intervals:
            link = owner.links[row.id]
            assert await postgres.store.fold(row.id, link.sequencer, 0, link.n)
        await postgres.store.advance_gc_watermark()
        await postgres.store.drop_bucket(first)
        status = looking.status(postgres.schema.name)
    assert postgres.schema.name in before
    assert [interval.commits for interval in status.intervals] == [0, 0, 0]
    assert await postgres.store.drop_bucket(first)


def _selected(schema: Schema, text: str) -> list[Any]:
    with selection.select(
        schema.url, [text], pipeline=schema.name, seconds=60, as_json=True
    ) as answers:
        return [str(row[0]) for row in next(answers).rows]


def _asked(schema: Schema, text: str) -> list[Any]:
    limits = asked_question.AnswerLimits(seconds=60, characters=10)
    with asked_question.ask(schema.url, text, schema.name, limits) as question:
        return [row[0] for chunk in question.rows(1000, 1000) for row in chunk]


@pytest.mark.parametrize(("module", "read"), [(selection, _selected), (asked_question, _asked)])
async def test_a_select_sees_all_even_if_a_bucket_is_dropped_as_it_begins(
    postgres: PostgresSite, monkeypatch: pytest.MonkeyPatch, module: Any, read: Any
) -> None:
    owner = await Owner.take(postgres.store)
    loop = asyncio.get_running_loop()
    columns = selection.typed_columns_of

    async def drop() -> bool:
        return await postgres.store.drop_bucket(await _droppable(postgres, owner))

    def then_drop(connection: psycopg.Connection[Any], text: str) -> list[tuple[str, int]]:
        found = columns(connection, text)
        assert asyncio.run_coroutine_threadsafe(drop(), loop).result(60)
        return found

    monkeypatch.setattr(module, "typed_columns_of", then_drop)
    text = "SELECT count(*) FROM latest_commits"
    assert await asyncio.to_thread(read, postgres.schema, text) == ["3"]


def test_a_process_that_was_killed_and_not_waited_for_is_dead() -> None:
    """A zombie keeps its entry until its parent notices: a new worker must not wait for that."""
    child = subprocess.Popen(["sleep", "60"])
    started = process_started(child.pid)
    assert started
    assert not is_dead(host_identity(), child.pid, started)
    child.kill()
    deadline = time.monotonic() + 10
    while not is_dead(host_identity(), child.pid, started):
        assert time.monotonic() < deadline
    assert child.wait() != 0


class Payment(msgspec.Struct):
    name: str
    amount: Decimal | None


@pytest.mark.newest
async def test_a_decimal_is_not_rounded_without_a_word(postgres: PostgresSite) -> None:
    """In a table that was made by hand."""
    table = Table("payments", Payment, key=("name",))
    await deploy(postgres.store)
    await postgres.query(
        "CREATE TABLE {t} (name text PRIMARY KEY, amount numeric(10, 2))", t="payments"
    )
    owner = await Owner.take(postgres.store, await deploy(postgres.store, tables=(table,)))
    fitting = ["1.50", "1.500", "1E+3", "-0.01", "NaN", None]
    commit = owner.commit()
    commit.rows = [(table, (f"{n}", text and Decimal(text))) for n, text in enumerate(fitting)]
    await owner.write(commit)
    found = [amount for _, amount in await postgres.rows(table)]
    assert [str(amount) for amount in found] == ["1.50", "1.50", "1000.00", "-0.01", "NaN", "None"]
    commit = owner.commit()
    commit.rows = [(table, ("good", Decimal(1))), (table, ("bad", Decimal("1.005")))]
    told = r"table 'payments': column 'amount' keeps 2 digits .* would round 1\.005"
    with pytest.raises(StatementError, match=told):
        await owner.lane.commit(commit)
    assert len(await postgres.rows(table)) == len(fitting)
