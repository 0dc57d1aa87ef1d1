"""The state of a store for people: pipelines, workers, computations, intervals and dead letters, in
one read-only transaction, so all of the same moment."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, Literal, NamedTuple

import msgspec
import psycopg
from psycopg import sql
from psycopg.rows import namedtuple_row

from millwheel.core.model import MAX_TIME, MIN_TIME, SLOTS, Key, from_micros
from millwheel.errors import UsageError
from millwheel.store.console.asked_question import (
    ReadableView,
    readable_views,
    rights_beyond_reading,
)
from millwheel.store.console.kept_letters import KeptLetters
from millwheel.store.console.left_data import OrphanedState, orphaned
from millwheel.store.console.migrate import HEAD
from millwheel.store.console.one_key import FIRST_PART, KeyPart, KeyStatus, look_at_key
from millwheel.store.console.outputs import OutputStatus, output_status
from millwheel.store.console.request_log import RequestLog
from millwheel.store.console.snapshot import (
    begin_snapshot,
    choose,
    iso_text,
    list_pipelines,
    reading,
    translated,
)
from millwheel.store.console.step_names import labels_of, name_of_step
from millwheel.store.console.worker_ends import EndOfWorkers, ends_of_workers, lasting_ends
from millwheel.store.postgres.processes import is_dead
from millwheel.store.postgres.statements import Statements, composed

VIEWED = (
    "latest_commits",
    "pending_productions",
    "dead_letters",
    "placement_events",
    "sinks",
    "watermark_holders",
    "disk_use",
    "oldest_bucket",
    "old_snapshots",
    "fold_lag",
)

END_OF_TIME = "infinity"
LATE = "late_"
"""Counters of late records begin with it."""

BEGIN_OF_TIME = "-infinity"

LISTED_ENDS = 10

NOTHING_AT_WORK = {"oldest": None, "seconds": 0.0}


class WorkerStatus(msgspec.Struct, frozen=True):
    """A worker that has not shut down cleanly."""

    id: str
    host: str
    pid: int
    started_at: datetime
    heartbeat_at: datetime
    lease_seconds: float
    """Remaining seconds of the lease; 0 or less if it has expired."""
    state: Literal["running", "silent", "dead"]
    """running or silent, by its lease; dead: its process ran on this machine and has ended."""
    intervals: int
    generation: int
    address: str = ""
    """Empty if it runs alone."""
    cpu: float | None = None
    """CPU seconds per second, from its last heartbeat."""
    rss_bytes: int | None = None
    """Memory, from the last heartbeat."""
    blocked_by: str | None = None
    """User code that blocks its event loop, from its last heartbeat."""
    waits: str | None = None
    """The commit or heartbeat that the store has not finished for long, and the sessions that hold
    the locks, from its last heartbeat."""


class Holder(msgspec.Struct, frozen=True):
    """The timer, state, record, input, source or parked key that holds back a computation's low
    watermark."""

    kind: str
    what: str
    key: Any
    at: str
    """The time at which it holds the watermark."""
    age_seconds: float | None = None
    """Time since the root's timer or hold was set, its record produced, or its row read."""
    path: list[str] = msgspec.field(default_factory=list)
    """Computations from this one upstream to the root's."""
    root: str = ""
    """The holder of the last computation in `path`."""


class ParkedStatus(msgspec.Struct, frozen=True):
    """Keys that stand still since a record failed (``on_error="park"``)."""

    keys: int = 0
    records: int = 0
    seconds: float = 0.0
    """How long the first of these keys has been parked."""


class CodeStatus(msgspec.Struct, frozen=True):
    """Seconds of one call of user code, waits included."""

    mean: float
    p99: float
    """99th percentile, on the slowest interval; of code that does not wait, of the means of
    chunks."""


class ComputationStatus(msgspec.Struct):
    """One node of the graph. Watermarks are ISO times, or infinity, or -infinity."""

    name: str
    kind: str
    paused: bool = False
    intervals: int = 0
    processed: int = 0
    records_out: int = 0
    """Records sent to readers (one for each reader), and rows and lines written."""
    duplicates_dropped: int = 0
    bloom_maybes: int = 0
    """Records that a Bloom filter may have seen, and that were looked up in the table."""
    late: int = 0
    """Sum of all counters that begin with late_."""
    dead_letters: int = 0
    """Dead letters since deploy."""
    dead_letters_kept: int = 0
    """Dead letters that are neither retried nor discarded."""
    parked: ParkedStatus = ParkedStatus()
    backlog: int = 0
    """The larger of records that were sent to it and are not acknowledged, and of those that its
    owners have received (rows of sources included) and that are not durable, as of their last
    heartbeats."""
    at_work: int = 0
    """Keys with user code that had begun and waited, at the last heartbeat of their owners."""
    oldest_key: str | None = None
    """The key that has waited for the longest time."""
    oldest_seconds: float = 0.0
    user_code: CodeStatus | None = None
    """Time of its user code between the last two heartbeats; None: none ran."""
    input_watermark: str = BEGIN_OF_TIME
    low_watermark: str = BEGIN_OF_TIME
    lag_seconds: float | None = None
    """Distance of the low watermark behind the database's clock; None: not known, or event time has
    ended."""
    per_second: float | None = None
    """Records processed (of an injector, rows read) per second between the last two heartbeats; in
    ``status --watch``, since the previous look."""
    out_per_second: float | None = None
    """`records_out` per second."""
    last_commit: str = BEGIN_OF_TIME
    holder: Holder | None = None
    counters: dict[str, int] = msgspec.field(default_factory=dict)
    label: str = ""
    """See `millwheel.graph.labels.label_of`."""


class IntervalStatus(msgspec.Struct, frozen=True):
    id: int
    computation: str
    slot_from: int
    slot_to: int
    """One past the last slot."""
    owner: str | None
    """A live worker or a dead one."""
    sequencer: int
    commits: int
    processed: int
    input_watermark: str
    low_watermark: str
    wanted_by: str | None = None
    """The wanted owner; None: the interval stays."""


class SourceFlow(msgspec.Struct, frozen=True):
    """Rows of a partition that were read and are not acknowledged. Times in seconds."""

    pending: int
    cap: int
    latency: float | None
    """95th percentile of the time from read to acknowledgement; None before the first."""
    target: float | None
    """The `latency_target` that moves the cap; None: the cap is fixed."""
    lag_rows: int | None = None
    """Rows that are not read yet; None: not known."""
    lag_bytes: int | None = None
    """Bytes that are not read yet; None: not known."""
    log_start: int | None = None
    """Offset of the first row that the partition still has; None: not known."""
    log_end: int | None = None
    """One past the offset of its last row; None: not known."""
    seconds_left: float | None = None
    """Time to read `lag_rows` at the present rate; None: not known."""


class SourceStatus(msgspec.Struct, frozen=True):
    computation: str
    source: str
    ended: bool
    position: Any
    flow: SourceFlow | None = None
    """Figures from the last heartbeat of its owner."""


class SinkStatus(msgspec.Struct, frozen=True):
    """One scope of a sink outside the store, or of another reader of numbered bundles."""

    computation: str
    scope: int
    acked: int
    """The last delivered bundle."""
    open: int | None
    """The bundle that is being delivered."""
    open_records: int | None
    open_seconds: float | None
    """Age of the open bundle, by the clock of its owner."""
    waiting: int | None
    """Records in its owner's memory, from the last heartbeat; None: it has no owner."""


class SparkQueryStatus(msgspec.Struct, frozen=True):
    checkpoint: str
    batch: int
    """The last batch in the tables; -1: there is none yet."""
    low_watermark: str
    """The promise of the sources when that batch was cut."""
    age_seconds: float
    """Time since it was done."""
    counters: dict[str, dict[str, int]]
    """Counters by computation."""


class GenerationStatus(msgspec.Struct, frozen=True):
    """How a computation goes with workers of one generation, while workers of another run too."""

    computation: str
    generation: int
    keys: float
    """Its part of the keys, 0 to 1."""
    per_second: float | None
    out_per_second: float | None
    backlog: int
    user_code: CodeStatus | None


class WaitsStatus(msgspec.Struct, frozen=True):
    """Waits beside those of records."""

    requests: int = 0
    """Requests of operators that are due and not carried out."""
    request_seconds: float = 0.0
    """How long the first of them has waited."""
    snapshot_seconds: float = 0.0
    """Age of the oldest snapshot of any session, for which dead rows stay; 0: there is none."""


class PipelineStatus(msgspec.Struct):
    name: str
    schema_version: str | None
    schema_current: bool
    """Whether this code can work with the schema; if not, all other fields are empty."""
    at: str = ""
    """Time of these figures, by the database's clock."""
    deployed: bool = False
    complete: bool = False
    """All input was read and processed, and event time has ended."""
    workers: list[WorkerStatus] = msgspec.field(default_factory=list)
    computations: list[ComputationStatus] = msgspec.field(default_factory=list)
    intervals: list[IntervalStatus] = msgspec.field(default_factory=list)
    sources: list[SourceStatus] = msgspec.field(default_factory=list)
    sinks: list[SinkStatus] = msgspec.field(default_factory=list)
    generations: list[GenerationStatus] = msgspec.field(default_factory=list)
    """Empty unless workers of several generations run: in a rolling deploy, or with a canary."""
    ends: list[EndOfWorkers] = msgspec.field(default_factory=list)
    """Errors that have ended workers and may still be a trouble, the newest first."""
    orphaned: list[OrphanedState] = msgspec.field(default_factory=list)
    """State that no code reads any more."""
    waits: WaitsStatus = WaitsStatus()
    outputs: OutputStatus = OutputStatus()
    """Of what it is a copy, and whether anything of it leaves the store."""
    on_spark: SparkQueryStatus | None = None
    """If it runs on Spark; then computations and intervals show how the engine has left them."""


class KeptBucket(msgspec.Struct, frozen=True):
    """Why the oldest bucket of records, seen ids and commits is kept."""

    kept_by: str
    """records, last commit, fold or reader."""
    what: str
    since: str | None


class Operating(NamedTuple):
    open_requests: int
    disk: dict[str, int]
    """Bytes of tables and indexes, by kind."""
    dead_rows: dict[str, int]
    """Former versions of rows that are not removed yet, by kind."""
    snapshot_seconds: float
    """Age of the oldest snapshot of any session, which keeps dead rows; 0: there is none."""


UNKNOWN = Operating(0, {}, {}, 0.0)
"""Used if this code cannot read the schema."""


class DiskStatus(msgspec.Struct, frozen=True):
    kinds: dict[str, int]
    """Bytes of tables and indexes, by kind."""
    oldest: list[KeptBucket]
    """Empty: nothing keeps the oldest bucket."""
    unfolded: int
    fold_age_seconds: float | None
    """Age of the oldest unfolded commit; None: all are folded."""
    dead_rows: int
    snapshot: str | None
    """The session with the oldest snapshot, if that has kept dead rows for longer than a minute."""


class Totals(NamedTuple):
    """Figures of all computations and workers together."""

    counters: Counter[str]
    """Since the first deploy."""
    low_watermark: int
    """Microseconds."""
    backlog: int
    """Records that wait, as live workers have reported."""
    share: float | None
    """Least share of its input that an injector has read, 0 to 1; None: one has no end."""
    workers: int
    """Live workers that own intervals."""


class OwnedInterval(msgspec.Struct, frozen=True):
    id: int
    computation: str
    kind: str
    slot_from: int
    slot_to: int
    """One past the last slot."""
    sequencer: int
    owner: str | None
    owner_alive: bool
    wanted_by: str | None
    pinned: bool
    split_at: int | None
    merge_with: int | None
    load: dict[str, Any] | None
    """Cost from the last heartbeat of its owner."""


class PlacementEvent(msgspec.Struct, frozen=True):
    id: int
    at: str
    computation: str
    interval: int
    slot_from: int
    slot_to: int
    what: str
    from_worker: str | None
    to_worker: str | None
    reason: str


class Inspection:
    """A look into a store at one moment; made by `inspect`."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        """For looks that stand in modules of their own."""

    def _rows(self, name: str, schema: str = "", **params: Any) -> list[Any]:
        statements = Statements(schema)
        views = {view: view for view in VIEWED}
        text = statements.get(name, **views)
        with self.connection.cursor(row_factory=namedtuple_row) as cursor:
            return cursor.execute(text, params or None).fetchall()

    def pipelines(self) -> list[str]:
        return list_pipelines(self.connection)

    def choose(self, wanted: str | None) -> str:
        """The wanted pipeline, or the only one; otherwise `UsageError`."""
        return choose(self.pipelines(), wanted)

    def status(self, pipeline: str) -> PipelineStatus:
        status = self.placed(pipeline)
        if not status.schema_current:
            return status
        found = {one.name: one for one in status.computations}
        status.sinks = [SinkStatus(*row) for row in self._rows("status_sinks", pipeline)]
        for name, kept, keys, waiting, seconds in self._rows("status_dead_letters", pipeline):
            if name in found:
                one = found[name]
                one.dead_letters_kept = kept
                one.parked = ParkedStatus(keys, waiting, seconds)
        status.waits = WaitsStatus(*self._rows("status_waits", pipeline)[0])
        status.orphaned = orphaned(self.connection, Statements(pipeline))
        for name, kind, what, key, at, *rest in self._rows("status_holders", pipeline):
            found[name].holder = Holder(
                kind, what, _json(key), iso_text(at) or BEGIN_OF_TIME, *rest
            )
        return status

    def placed(self, pipeline: str) -> PipelineStatus:
        """The part of the status that needs no look at states, timers or letters: workers,
        intervals, sources and rates."""
        version = self._version(pipeline)
        status = PipelineStatus(pipeline, version, version == HEAD)
        if not status.schema_current:
            return status
        ((now,),) = self._rows("database_time")
        status.at = time_text(now)
        labels = self.labels(pipeline)
        status.deployed = bool(labels)
        status.outputs = output_status(self.connection, pipeline)
        for checkpoint, batch, low_watermark, age, counters in self._rows("status_spark", pipeline):
            status.on_spark = SparkQueryStatus(
                checkpoint, batch, time_text(low_watermark), age, counters
            )
        workers = [_worker(row) for row in self._rows("status_workers", pipeline)]
        status.workers = sorted(workers, key=lambda worker: worker.state != "running")
        intervals = self._rows("status_intervals", pipeline)
        found = {
            name: _computation(name, kind, list(rows), now)
            for (name, kind), rows in groupby(intervals, key=attrgetter("name", "kind"))
        }
        for name, one in found.items():
            one.label = labels.get(name, name)
        status.intervals = [_interval(row) for row in intervals]
        status.generations = _by_generation(intervals, status.workers, now)
        status.sources = [_source(row) for row in intervals if row.source is not None]
        for name, backlog in self._rows("status_backlog", pipeline):
            if name in found:  # otherwise it was removed, and records sent to it are dropped
                found[name].backlog = max(found[name].backlog, backlog)
        status.computations = list(found.values())
        status.complete = bool(found) and all(
            one.low_watermark == END_OF_TIME and not one.backlog for one in status.computations
        )
        running = [one for one in status.workers if one.state == "running"]
        status.ends = lasting_ends(
            ends_of_workers(self.connection, pipeline, LISTED_ENDS),
            [(from_micros(now) - one.started_at).total_seconds() for one in running],
            is_complete=status.complete,
        )
        return status

    def labels(self, pipeline: str) -> dict[str, str]:
        """The names for display, by name; empty: nothing is deployed."""
        return labels_of(self.connection, pipeline)

    def totals(self, pipeline: str) -> Totals:
        rows = self._rows("status_intervals", pipeline)
        counters: Counter[str] = Counter()
        for row in rows:
            counters.update(row.counters)
        shares = [
            1.0 if row.low_watermark >= MAX_TIME else row.share
            for row in rows
            if row.kind == "injector"
        ]
        return Totals(
            counters,
            min((row.low_watermark for row in rows), default=MIN_TIME),
            backlog=sum(row.queued or 0 for row in rows),
            share=None if None in shares else min(shares, default=None),
            workers=len({row.owner for row in rows if row.is_owned}),
        )

    def _version(self, pipeline: str) -> str | None:
        statement = composed(
            "schema_version", alembic_version=sql.Identifier(pipeline, "alembic_version")
        )
        row = self.connection.execute(statement).fetchone()
        return None if row is None else str(row[0])

    def disk(self, pipeline: str) -> DiskStatus:
        self.require_current(pipeline)
        (row,) = self._rows("status_disk", pipeline)
        return DiskStatus(
            msgspec.json.decode(row.kinds, type=dict[str, int]),
            msgspec.json.decode(row.oldest, type=list[KeptBucket]),
            row.unfolded,
            row.fold_age,
            row.dead_rows,
            row.snapshot,
        )

    def operating(self, pipeline: str) -> Operating:
        (row,) = self._rows("status_operating", pipeline)
        disk, dead_rows = (
            msgspec.json.decode(text, type=dict[str, int]) for text in (row.disk, row.dead_rows)
        )
        return Operating(row.open_requests, disk, dead_rows, row.snapshot_seconds)

    def letters(self, pipeline: str) -> KeptLetters:
        """The dead letters."""
        self.require_current(pipeline)
        return KeptLetters(self.connection, pipeline)

    def key(
        self, pipeline: str, computation: str, key: Key, part: KeyPart = FIRST_PART
    ) -> KeyStatus:
        self.require_current(pipeline)
        name = name_of_step(self.connection, pipeline, computation)
        return look_at_key(self.connection, pipeline, name, key, part)

    def intervals(self, pipeline: str) -> list[OwnedInterval]:
        self.require_current(pipeline)
        return [OwnedInterval(*row) for row in self._rows("show_intervals", pipeline)]

    def placement_events(
        self, pipeline: str, limit: int, *, before: int | None = None
    ) -> list[PlacementEvent]:
        """Newest first; only those with numbers smaller than `before`."""
        self.require_current(pipeline)
        rows = self._rows("newest_placement_events", pipeline, limit=limit, before=before)
        return [PlacementEvent(id_, iso_text(at) or "", *rest) for id_, at, *rest in rows]

    def log(self, pipeline: str) -> RequestLog:
        """The log of operators."""
        self.require_current(pipeline)
        return RequestLog(self.connection, pipeline)

    def rights_beyond_reading(self) -> str:
        """A right of this login that a reader of the pipelines does not have, in words; empty:
        none."""
        return rights_beyond_reading(self.connection, self.pipelines())

    def readable_views(self, pipeline: str) -> list[ReadableView]:
        """The relations of a pipeline that this login may read, besides the engine's own tables."""
        return readable_views(self.connection, pipeline)

    def runs_on_spark(self, pipeline: str) -> bool:
        return bool(self._rows("runs_on_spark", pipeline))

    def require_owners(self, pipeline: str) -> None:
        """`UsageError` if keys have no owners that can be asked: the pipeline runs on Spark, or its
        schema is of another version."""
        self.require_current(pipeline)
        if self.runs_on_spark(pipeline):
            raise UsageError(
                f"pipeline {pipeline!r} runs on Spark, which has its keys: no worker could carry "
                "this out. Move it back first: millwheel spark return MODULE:PIPELINE"
            )

    def require_current(self, pipeline: str) -> None:
        """`UsageError` if the pipeline's schema is of another version."""
        version = self._version(pipeline)
        if version != HEAD:
            raise UsageError(
                f"the schema of pipeline {pipeline!r} is at version {version}, and this code needs "
                f"{HEAD}. Run: millwheel migrate {pipeline}, with the same --store"
            )


@contextlib.contextmanager
def inspect(url: str) -> Iterator[Inspection]:
    """`StoreError` if the store cannot be reached or read."""
    with reading(url) as connection, translated():
        begin_snapshot(connection)
        yield Inspection(connection)


# -- rows to structs -------------------------------------------------------------------------


def time_text(micros: int) -> str:
    """ISO 8601; the ends of time are infinity and -infinity."""
    if micros >= MAX_TIME:
        return END_OF_TIME
    if micros <= MIN_TIME:
        return BEGIN_OF_TIME
    return from_micros(micros).isoformat()


def _json(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)


def _worker(row: Any) -> WorkerStatus:
    id_, host, pid, pid_started, started_at, heartbeat_at, lease_seconds, *rest = row
    state: Literal["running", "silent", "dead"] = "running" if lease_seconds > 0 else "silent"
    if is_dead(host, pid, pid_started):
        state = "dead"
    return WorkerStatus(
        id_, host.split()[0], pid, started_at, heartbeat_at, lease_seconds, state, *rest
    )


def _computation(name: str, kind: str, intervals: list[Any], now: int) -> ComputationStatus:
    totals: Counter[str] = Counter()
    for row in intervals:
        totals.update(row.counters)
    low_watermark = min(row.low_watermark for row in intervals)
    known = MIN_TIME < low_watermark < MAX_TIME
    work = [row.at_work for row in intervals if row.at_work is not None]
    oldest: dict[str, Any] = max(work, key=itemgetter("seconds"), default=NOTHING_AT_WORK)
    code = [row.code for row in intervals if row.code is not None]
    calls = sum(each["calls"] for each in code)
    rates = [(row.rate, row.rate_out) for row in intervals if row.rate is not None]
    return ComputationStatus(
        name,
        kind,
        paused=intervals[0].paused,
        intervals=len(intervals),
        processed=totals["processed"],
        records_out=totals["records_out"],
        duplicates_dropped=totals["duplicates_dropped"],
        bloom_maybes=totals["bloom_maybes"],
        late=sum(total for counter, total in totals.items() if counter.startswith(LATE)),
        dead_letters=totals["dead_letters"] + totals["bad_rows"],
        backlog=sum(row.queued or 0 for row in intervals),
        at_work=sum(each["keys"] for each in work),
        oldest_key=oldest["oldest"],
        oldest_seconds=oldest["seconds"],
        user_code=(
            CodeStatus(
                sum(each["seconds"] for each in code) / calls, max(each["p99"] for each in code)
            )
            if calls
            else None
        ),
        per_second=sum(rate for rate, _ in rates) if rates else None,
        out_per_second=sum(out or 0.0 for _, out in rates) if rates else None,
        input_watermark=time_text(min(row.input_watermark for row in intervals)),
        low_watermark=time_text(low_watermark),
        lag_seconds=(now - low_watermark) / 1e6 if known else None,
        last_commit=time_text(max(row.stamp for row in intervals)),
        counters={counter: totals[counter] for counter in sorted(totals)},
    )


def _by_generation(
    intervals: list[Any], workers: list[WorkerStatus], now: int
) -> list[GenerationStatus]:
    of_worker = {worker.id: worker.generation for worker in workers if worker.state == "running"}
    if len(set(of_worker.values())) < 2:
        return []
    rows: dict[tuple[str, int], list[Any]] = {}
    for row in intervals:
        if row.owner in of_worker and row.kind != "injector":
            rows.setdefault((row.name, of_worker[row.owner]), []).append(row)
    found: list[GenerationStatus] = []
    for (name, generation), own in rows.items():
        one = _computation(name, own[0].kind, own, now)
        keys = sum(row.slot_to - row.slot_from for row in own) / SLOTS
        found.append(
            GenerationStatus(
                name,
                generation,
                keys,
                one.per_second,
                one.out_per_second,
                one.backlog,
                one.user_code,
            )
        )
    return sorted(found, key=lambda one: (one.computation, one.generation))


def _interval(row: Any) -> IntervalStatus:
    return IntervalStatus(
        row.id,
        row.name,
        row.slot_from,
        row.slot_to,
        row.owner,
        row.sequencer,
        row.n,
        row.counters.get("processed", 0),
        time_text(row.input_watermark),
        time_text(row.low_watermark),
        row.wanted_by,
    )


def _source(row: Any) -> SourceStatus:
    position = row.position or {}
    flow = None if row.flow is None else msgspec.convert(row.flow, SourceFlow)
    if flow is not None and flow.lag_rows and row.rate:
        flow = msgspec.structs.replace(flow, seconds_left=flow.lag_rows / row.rate)
    ended = bool(position.get("ended"))
    return SourceStatus(row.name, row.source, ended, position.get("reader"), flow)
