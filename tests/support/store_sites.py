"""What the store's tests share: sites to test a store at, and commits to write to it.

A site is an empty store of some kind with ways to look into it that the protocol does not
have. An `Owner` holds intervals as an engine does, and numbers its commits as one does.
"""

from __future__ import annotations

import itertools
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import msgspec
import psycopg
from psycopg import AsyncConnection, sql

from millwheel.core.chunk import Chunk, Chunks, together
from millwheel.core.clock import VirtualClock
from millwheel.core.codec import encode_key
from millwheel.core.model import SLOTS, Delivery, Key, record_id
from millwheel.sinks import Table
from millwheel.store.console import administration
from millwheel.store.memory import MemoryStore, ShownState, ShownTimer
from millwheel.store.port import Store
from millwheel.store.port.claims import Claim
from millwheel.store.port.commit import Commit, IntervalCommit, StoreLane
from millwheel.store.port.deploy import Deployment, DescribedGraph, NodeDeploy, StreamDeploy
from millwheel.store.port.placement import IntervalRow
from millwheel.store.port.requests import DeadLetter
from millwheel.store.port.seen import SeenIds
from millwheel.store.port.states import StateRun, TimerChange
from millwheel.store.postgres.store import PostgresStore

START = 1_700_000_000_000_000
"""The stamp of the deploy, in microseconds; each commit after it is a second later."""
SECOND = 1_000_000
BUCKET_HIGH = START + 3600 * SECOND


class Counted(msgspec.Struct):
    """A row of the table sinks, with a column of every kind that matters."""

    word: str
    count: int
    share: float | None = None
    note: str | None = None
    parts: dict[str, int] | None = None


COUNTS = Table("counts", Counted, key=("word",))
LOG = Table("order", Counted)
"""Append-only, under a name that must be quoted."""

REFUSED = "INSERT INTO no_such_table VALUES (%s)"
"""A statement that every site refuses."""


# -- sites ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Schema:
    """A migrated schema on a throw-away server."""

    url: str
    name: str
    version: int

    def table(self, name: str) -> sql.Identifier:
        """One of its tables, quoted."""
        return sql.Identifier(self.name, name)

    def query(self, text: str, *params: Any, **tables: str) -> list[tuple[Any, ...]]:
        """Run a statement as somebody else would; ``{name}`` stands for a table."""
        with psycopg.connect(self.url, autocommit=True, options="-c search_path=") as connection:
            cursor = connection.execute(self.compose(text, **tables), params or None)
            return cursor.fetchall() if cursor.description else []

    def compose(self, text: str, **tables: str) -> sql.Composed:
        """The statement with its tables put in."""
        return sql.SQL(text).format(
            **{name: self.table(table) for name, table in tables.items()},
            schema=sql.Identifier(self.name),
        )


class Site(ABC):
    """A store under test."""

    store: Store

    @abstractmethod
    async def another(self) -> Store:
        """The same store, as another process sees it."""

    @abstractmethod
    async def states(self) -> list[ShownState]:
        """The view `states`, in order."""

    @abstractmethod
    async def timers(self) -> list[ShownTimer]:
        """The view `timers`, in order."""

    @abstractmethod
    async def pending(self) -> list[tuple[int, int]]:
        """(log, seq) of the view `pending_productions`, in order."""

    @abstractmethod
    async def rows(self, table: Table[Any]) -> list[tuple[Any, ...]]:
        """The rows of a table sink, in order of the first column."""

    @abstractmethod
    async def dead_letters(self) -> list[DeadLetter]:
        """What was given up on, in order."""

    @abstractmethod
    async def pause(self, *injectors: str) -> None:
        """Let these injectors rest, and no others, as an operator does."""

    @abstractmethod
    async def clock_goes_back(self, seconds: float) -> None:
        """Have everything that was written by the store's clock lie so far ahead of it."""

    @abstractmethod
    async def end_liveness_session(self, worker: str) -> None:
        """End the session of a worker's heartbeats, as the end of its process does."""

    @abstractmethod
    async def server_starts_again(self) -> None:
        """Have everything that was written by the server be from before its start."""

    @abstractmethod
    async def aclose(self) -> None: ...

    @abstractmethod
    def refuse_statements(self) -> None:
        """See to it that `REFUSED` is refused."""


class MemorySite(Site):
    """The store in memory."""

    def __init__(self) -> None:
        self.clock = VirtualClock(START)
        self.store: MemoryStore = MemoryStore("wheel", clock=self.clock)
        self.tables: MemoryStore = self.store
        """What is stored, to look into it."""

    async def another(self) -> Store:
        return self.store.another()

    async def states(self) -> list[ShownState]:
        return sorted(self.tables.states(), key=repr)

    async def timers(self) -> list[ShownTimer]:
        return sorted(self.tables.timers(), key=repr)

    async def pending(self) -> list[tuple[int, int]]:
        return self.tables.pending_productions()

    async def rows(self, table: Table[Any]) -> list[tuple[Any, ...]]:
        return sorted(self.tables.rows(table.name), key=itemgetter(0))

    async def dead_letters(self) -> list[DeadLetter]:
        return list(self.tables.dead_letters)

    async def pause(self, *injectors: str) -> None:
        self.tables.pause(*injectors)

    async def clock_goes_back(self, seconds: float) -> None:
        for worker in self.tables.tables.workers.values():
            worker.heartbeat_at += int(seconds * 1e6)
            worker.lease_until += seconds

    async def end_liveness_session(self, worker: str) -> None:
        self.tables.end_liveness_session(worker)

    async def server_starts_again(self) -> None:
        self.tables.restart_server()

    async def aclose(self) -> None:
        await self.store.close()

    def refuse_statements(self) -> None:
        self.tables.faults.refuse = lambda what, _: "no such table" if what == REFUSED else None


class PostgresSite(Site):
    """A schema in Postgres. Its own connection sees what any other session would."""

    def __init__(self, schema: Schema, store: PostgresStore, reader: AsyncConnection[Any]) -> None:
        self.schema = schema
        self.store: PostgresStore = store
        self.reader = reader
        self._others: list[PostgresStore] = []

    @classmethod
    async def open(cls, schema: Schema) -> PostgresSite:
        store = await PostgresStore(schema.url, schema.name).open()
        reader = await AsyncConnection.connect(
            schema.url, autocommit=True, options="-c search_path= -c timezone=UTC"
        )
        return cls(schema, store, reader)

    async def another(self) -> PostgresStore:
        store = await PostgresStore(self.schema.url, self.schema.name).open()
        self._others.append(store)
        return store

    async def query(self, text: str, *params: Any, **tables: str) -> list[tuple[Any, ...]]:
        """Run a statement; ``{name}`` stands for a table of the schema."""
        statement = self.schema.compose(text, **tables)
        cursor = await self.reader.execute(statement, params or None)
        return await cursor.fetchall() if cursor.description else []

    async def states(self) -> list[ShownState]:
        return await read_states(self.reader, self.schema)

    async def timers(self) -> list[ShownTimer]:
        return await read_timers(self.reader, self.schema)

    async def pending(self) -> list[tuple[int, int]]:
        return await read_pending(self.reader, self.schema)

    async def rows(self, table: Table[Any]) -> list[tuple[Any, ...]]:
        names = sql.SQL(", ").join(sql.Identifier(column.name) for column in table.columns)
        statement = sql.SQL('SELECT {} FROM {} ORDER BY {} COLLATE "C", ctid').format(
            names, self.schema.table(table.name), sql.Identifier(table.columns[0].name)
        )
        return await (await self.reader.execute(statement)).fetchall()

    async def dead_letters(self) -> list[DeadLetter]:
        rows = await self.query(
            "SELECT slot, computation, stream, record_id, key, value, ts, place, error, "
            "traceback, attempts, stamp FROM {letters} ORDER BY id",
            letters="dead_letter",
        )
        letters = [DeadLetter(*row) for row in rows]
        return [
            letter._replace(
                record_id=letter.record_id and uuid.UUID(str(letter.record_id)).bytes,
                key=None if letter.key is None else str(letter.key).encode(),
            )
            for letter in letters
        ]

    async def clock_goes_back(self, seconds: float) -> None:
        await self.query(
            "UPDATE {w} SET heartbeat_at = heartbeat_at + %s * interval '1 second', "
            "lease_until = lease_until + %s * interval '1 second'",
            seconds,
            seconds,
            w="worker",
        )

    async def end_liveness_session(self, worker: str) -> None:
        held = (
            "SELECT l.pid FROM pg_locks AS l "
            "JOIN pg_database AS d ON d.oid = l.database AND d.datname = current_database() "
            "CROSS JOIN hashtextextended(%s || ' ' || %s, 2) AS h (number) "
            "WHERE l.locktype = 'advisory' AND l.classid::bigint = ((h.number >> 32) & 4294967295) "
            "AND l.objid::bigint = (h.number & 4294967295)"
        )
        params = self.schema.name, worker
        ended = f"SELECT count(pg_terminate_backend(pid, 5000)) FROM ({held}) AS h"
        assert await self.query(ended, *params) == [(1,)]

    async def server_starts_again(self) -> None:
        await self.query("UPDATE {w} SET locked_on = locked_on - interval '1 second'", w="worker")

    async def pause(self, *injectors: str) -> None:
        administration.pause(self.schema.url, self.schema.name, paused=False)
        if injectors:
            administration.pause(self.schema.url, self.schema.name, injectors)

    async def aclose(self) -> None:
        await self.reader.close()
        for store in (self.store, *self._others):
            await store.close()

    def refuse_statements(self) -> None:
        """There is no such table."""


async def read_states(connection: AsyncConnection[Any], schema: Schema) -> list[ShownState]:
    """The view `states`, as this session sees it now."""
    cursor = await connection.execute(
        schema.compose(
            "SELECT computation, slot, key, entry, value, version FROM {states}", states="states"
        )
    )
    return sorted((ShownState(*row) for row in await cursor.fetchall()), key=repr)


async def read_timers(connection: AsyncConnection[Any], schema: Schema) -> list[ShownTimer]:
    """The view `timers`, as this session sees it now."""
    cursor = await connection.execute(
        schema.compose(
            "SELECT computation, slot, key, kind, tag, extract(epoch FROM due) * 1000000, "
            "extract(epoch FROM hold) * 1000000 FROM {timers}",
            timers="timers",
        )
    )
    return sorted(
        (
            ShownTimer(computation, slot, key, kind, tag, int(due), int(hold))
            for computation, slot, key, kind, tag, due, hold in await cursor.fetchall()
        ),
        key=repr,
    )


async def read_pending(connection: AsyncConnection[Any], schema: Schema) -> list[tuple[int, int]]:
    """(log, seq) of the view `pending_productions`, as this session sees it now."""
    cursor = await connection.execute(
        schema.compose("SELECT log, seq FROM {p} ORDER BY log, seq", p="pending_productions")
    )
    return await cursor.fetchall()


# -- a pipeline ---------------------------------------------------------------------------

WORDS = StreamDeploy("words", 1, {"type": "string"})
TOTALS = StreamDeploy("totals", 3, {"type": "integer"}, [1, 2])
LINES = NodeDeploy("lines", "injector", 1, {}, [], [(0, 1)], ["file lines.txt"])
COUNT = NodeDeploy(
    "count", "computation", 2, {"type": "object", "n": "int"}, ["lines"],
    [(0, SLOTS // 2), (SLOTS // 2, SLOTS)], [], [1],
)  # fmt: skip
GRAPH: dict[str, Any] = {
    "nodes": {"lines": {"writes": ["words"]}, "count": {"reads": ["words"], "writes": ["totals"]}}
}


async def deploy(
    store: Store,
    *,
    graph: dict[str, Any] = GRAPH,
    lines: NodeDeploy = LINES,
    count: NodeDeploy = COUNT,
    words: StreamDeploy = WORDS,
    tables: tuple[Table[Any], ...] = (COUNTS, LOG),
    bucket_high: int = BUCKET_HIGH,
    more: tuple[NodeDeploy, ...] = (),
    shared: bool = False,
) -> Deployment:
    """A pipeline of an injector with one partition and a computation with two intervals."""
    return await store.deploy(
        DescribedGraph(graph, [lines, count, *more], [words, TOTALS], list(tables)),
        stamp=START,
        bucket_high=bucket_high,
        shared=shared,
    )


def as_chunks(records: Iterable[Delivery[Any]]) -> Chunks:
    """As a worker makes them: columns for records with consecutive numbers."""
    chunks = together(records)
    assert all(isinstance(chunk, Chunk) for chunk in chunks)
    return Chunks(chunks)  # type: ignore[arg-type]


class Owner:
    """A worker that owns every interval of a deployed pipeline."""

    def __init__(self, store: Store, deployment: Deployment, worker: str) -> None:
        self.store = store
        self.deployment = deployment
        self.worker = worker
        self.computation = deployment.computations["count"]
        self.injector = next(
            row for row in deployment.intervals if row.computation != self.computation
        )
        self.intervals = [
            row for row in deployment.intervals if row.computation == self.computation
        ]
        self.claims: dict[int, Claim] = {}
        self.links: dict[int, IntervalCommit] = {}
        """The last commit of each interval."""
        self.bucket: dict[int, int] = {}
        """The bucket it stands in."""
        self.stamp = START
        self.lane: StoreLane
        self._seq = itertools.count()

    @classmethod
    async def take(cls, store: Store, deployment: Deployment | None = None) -> Owner:
        """Register, claim everything, open a lane."""
        if deployment is None:
            deployment = await deploy(store)
        owner = cls(store, deployment, str(uuid.uuid4()))
        await store.register_worker(owner.worker, 60.0)
        await owner.claim()
        owner.lane = await store.open_lane()
        return owner

    async def claim(self, *intervals: IntervalRow) -> list[Claim]:
        """Claim intervals (all of them), and go on from what is stored."""
        wanted = intervals or tuple(self.deployment.intervals)
        claims = await self.store.claim(self.worker, [row.id for row in wanted])
        for claim in claims:
            id_ = claim.interval.id
            self.claims[id_] = claim
            self.bucket[id_] = claim.bucket
            self.stamp = max(self.stamp, claim.stamp)
            self.links[id_] = IntervalCommit(
                interval_id=id_,
                sequencer=claim.interval.sequencer,
                n=claim.n,
                previous_bucket=0,
                input_watermark=claim.input_watermark,
                low_watermark=claim.low_watermark,
                floor=claim.stamp,
                acked=b"{}",
                position=None,
                counters=b"{}",
                table_rows=claim.table_rows,
            )
        return claims

    def interval_of(self, key: Key) -> IntervalRow:
        """Who keeps a key."""
        slot = encode_key(key)[1]
        return next(row for row in self.intervals if row.slot_from <= slot < row.slot_to)

    def log(self, interval: IntervalRow | None = None) -> int:
        """The log that an interval writes."""
        return self.claims[(interval or self.intervals[0]).id].new_log

    def commit(self, *intervals: IntervalRow, bucket: int | None = None, **link: Any) -> Commit:
        """The next commit, of all intervals of the computation or of these, still empty."""
        self.stamp += SECOND
        wanted = intervals or tuple(self.intervals)
        current = max(self.bucket.values()) if bucket is None else bucket
        commit = Commit(self.stamp, current)
        for row in wanted:
            last = self.links[row.id]
            next_link = replace(
                last, n=last.n + 1, previous_bucket=self.bucket[row.id], floor=self.stamp
            )
            commit.intervals.append(replace(next_link, **link))
        return commit

    async def write(self, commit: Commit) -> None:
        """Commit, and note that it is durable."""
        await self.lane.commit(commit)
        for link in commit.intervals:
            self.links[link.interval_id] = link
            self.bucket[link.interval_id] = commit.bucket

    # -- what goes into a commit ----------------------------------------------------------

    def state(self, key: Key, value: Any, entry: str = "", *, version: int = 2) -> StateRun:
        """A changed entry; None: removed."""
        row = self.interval_of(key)
        key_text, slot = encode_key(key)
        encoded = None if value is None else msgspec.json.encode(value)
        n = self.links[row.id].n + 1
        entries = [entry] if entry else None
        return StateRun(
            row.id, n, self.computation, version, [slot], [key_text], entries, [encoded]
        )

    def timer(
        self, key: Key, due: int | None, tag: str = "", kind: str = "watermark"
    ) -> TimerChange:
        """A timer that is set, or (None) fired or cancelled."""
        row = self.interval_of(key)
        key_text, slot = encode_key(key)
        hold = None if due is None else due + 1
        n = self.links[row.id].n + 1
        return TimerChange(row.id, n, self.computation, slot, key_text, kind, tag, due, hold)

    def production(
        self, key: Key, value: Any, *, stream: str = "totals", interval: IntervalRow | None = None
    ) -> Delivery[Any]:
        """A record sent, the next one of its log; its stamp is that of the last `commit`."""
        key_text, slot = encode_key(key)
        encoded = msgspec.json.encode(value)
        log, seq = self.log(interval), next(self._seq)
        return Delivery(
            key, value, self.stamp - SECOND, stream, key_text, slot, self.computation,
            self.stamp - SECOND + 1, len(encoded), encoded, log, seq, self.stamp,
            record_id(log, seq),
        )  # fmt: skip

    def straggler(self, key: Key, value: Any, *, origin: int = 0, place: int = 7) -> Delivery[Any]:
        """A weak production, the next one of the log, that has not arrived; its id says so."""
        made = self.production(key, value)
        made.id = b"\xff" + made.id[1:12] + bytes(reversed(made.id[12:]))
        made.origin, made.stamp = origin, place
        return made

    def seen(self, number: int, *, slot: int | None = None) -> tuple[int, int, bytes]:
        """The id of a weak production: (slot, computation, id)."""
        id_ = b"\x80" + number.to_bytes(11, "big") + bytes(4)
        return (number * 7919 % SLOTS if slot is None else slot, self.computation, id_)

    def numbers(self, *numbers: int, log: int = 1) -> SeenIds:
        """Numbers of a log, in whatever order."""
        return SeenIds(numbers={(self.computation, log): [(number,) for number in numbers]})

    def dead_letter(self, number: int) -> DeadLetter:
        """Something given up on."""
        key_text, slot = encode_key(f"key {number}")
        return DeadLetter(
            slot=slot,
            computation=self.computation,
            stream="words",
            record_id=record_id(1, number),
            key=key_text,
            value=f'"wörd {number}"',
            ts=self.stamp,
            place=f"log 1 number {number}",
            error="ValueError: it's\nbad \\ 'very'",
            traceback='Traceback\n  File "x.py"',
            attempts=3,
            stamp=self.stamp,
        )

    def fill(self, commit: Commit, count: int = 1, *, first: int = 0) -> Commit:
        """Put `count` rows of everything into a commit."""
        numbers = range(first, first + count)
        mine = {link.interval_id for link in commit.intervals}
        keys: list[Key] = [key for n in numbers if self.interval_of(key := f"key {n}").id in mine]
        commit.states = [*commit.states, *(self.state(key, {"n": key}) for key in keys)]
        commit.timers = [*commit.timers, *(self.timer(key, self.stamp + SECOND) for key in keys)]
        made = [self.production(key, f"sum of {key}") for key in keys]
        commit.productions = [*commit.productions, *made]
        seen = commit.seen.setdefault(commit.bucket, SeenIds())
        seen.rows = [*seen.rows, *map(self.seen, numbers)]
        seen.add_numbers(self.computation, 1, numbers)
        commit.dead_letters += [self.dead_letter(n) for n in numbers]
        return commit


def row(word: str, count: int | None, **more: Any) -> tuple[Any, ...]:
    """A row of `COUNTS` or `LOG`; a count of None is refused by each."""
    parts = more.get("parts")
    text = None if parts is None else msgspec.json.encode(parts).decode()
    return (word, count, more.get("share"), more.get("note"), text)


@dataclass
class Sight:
    """Everything a commit may change, as anybody can see it."""

    states: list[ShownState]
    timers: list[ShownTimer]
    pending: list[tuple[int, int]]
    counts: list[tuple[Any, ...]]
    log: list[tuple[Any, ...]]
    dead_letters: list[DeadLetter]
    seen: dict[int, list[tuple[bytes, int]]]
    numbers: dict[int, dict[int, set[int]]]


async def look(site: Site, owner: Owner) -> Sight:
    """All of it."""
    seen = {
        bucket.id: await site.store.scan_seen(
            bucket.id, owner.computation, (0, SLOTS), (bytes(16), -1), 100_000
        )
        for bucket in await site.store.live_buckets()
    }
    numbers = {
        bucket: await site.store.look_up_numbers(bucket, owner.computation, {1: range(10_000)})
        for bucket in seen
    }
    return Sight(
        await site.states(),
        await site.timers(),
        await site.pending(),
        await site.rows(COUNTS),
        await site.rows(LOG),
        await site.dead_letters(),
        seen,
        {bucket: {log: some for log, some in of.items() if some} for bucket, of in numbers.items()},
    )
