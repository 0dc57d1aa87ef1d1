"""Looking into a store: which pipelines it holds, how they are doing, what a SELECT gives.

Everything here is read in one read-only transaction, so all figures are of one moment.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import msgspec
import psycopg
from psycopg import errors, sql
from psycopg.adapt import Buffer, Loader
from psycopg.conninfo import make_conninfo
from psycopg.rows import namedtuple_row
from psycopg.types.string import TextLoader

from millwheel.errors import MillwheelError, StoreUnavailable, UsageError
from millwheel.model import MAX_TIME, MIN_TIME, from_micros
from millwheel.store.migrate import HEAD
from millwheel.store.processes import is_dead
from millwheel.store.statements import BUCKETED, Statements, composed, text_of
from millwheel.store.translation import translate

CONNECT_SECONDS = 5
LOOK_SECONDS = 60
"""How long one of our own statements may take."""

LOCK_ATTEMPTS = 5
"""A pipeline may be dropped between listing its tables and locking them."""

VIEWED = ("latest_commits", "pending_productions", "dead_letters", "placement_events")

END_OF_TIME = "infinity"
LATE = "late_"
"""Begins the names of the counters of late records; the rest says what became of them."""

BEGIN_OF_TIME = "-infinity"


class Worker(msgspec.Struct, frozen=True):
    """A worker that has not ended in order."""

    id: str
    host: str
    pid: int
    started_at: datetime
    heartbeat_at: datetime
    lease_seconds: float
    """What is left of its lease; 0 or less: it ran out."""
    state: Literal["running", "silent", "dead"]
    """By its lease; dead: its process ran on this machine and is gone."""
    intervals: int
    """That it owns."""
    generation: int
    """Of the pipeline, that its code belongs to."""
    address: str = ""
    """Where other workers reach it; empty: it is alone."""
    cpu: float | None = None
    """CPU seconds per second, by its last heartbeat; None: there was none yet."""
    rss_bytes: int | None = None
    """Its memory, likewise."""


class Holder(msgspec.Struct, frozen=True):
    """What keeps a computation's low watermark from moving on."""

    kind: str
    """timer, state, record, input or source."""
    what: str
    key: Any
    at: str
    """The time it holds the watermark at."""
    age_seconds: float | None = None
    """Of the root: since a timer or hold was set, a record produced, a row read."""
    path: list[str] = msgspec.field(default_factory=list)
    """The computations from this one upstream to the one that holds them all."""
    root: str = ""
    """What holds the last of the path."""


class ComputationStatus(msgspec.Struct):
    """One node of the graph. Watermarks are ISO times, or infinity, or -infinity."""

    name: str
    kind: str
    paused: bool = False
    """An injector that an operator lets rest."""
    intervals: int = 0
    processed: int = 0
    duplicates_dropped: int = 0
    bloom_maybes: int = 0
    """Records that may have been seen, and that were looked up in the table."""
    late: int = 0
    """The sum of all counters that begin with late_."""
    dead_letters: int = 0
    """Records and rows given up on since deploy."""
    dead_letters_kept: int = 0
    """Those that have not been discarded."""
    backlog: int = 0
    """Records sent to it and not known to be processed."""
    input_watermark: str = BEGIN_OF_TIME
    low_watermark: str = BEGIN_OF_TIME
    lag_seconds: float | None = None
    """How far the low watermark is behind the database's clock; None: not known, or ended."""
    per_second: float | None = None
    """Processed, since the look before; only while watched."""
    last_commit: str = BEGIN_OF_TIME
    holder: Holder | None = None
    counters: dict[str, int] = msgspec.field(default_factory=dict)


class IntervalStatus(msgspec.Struct, frozen=True):
    """One range of slots of a computation, or one partition of an injector."""

    id: int
    computation: str
    slot_from: int
    slot_to: int
    """One past the last."""
    owner: str | None
    """Id of a worker, alive or not."""
    sequencer: int
    commits: int
    processed: int
    input_watermark: str
    low_watermark: str
    wanted_by: str | None = None
    """Id of the worker that is to have it next; None: it stays."""


class SourceFlow(msgspec.Struct, frozen=True):
    """Rows of a partition that were read and are not acknowledged. Times in seconds."""

    pending: int
    cap: int
    """How many there may be."""
    latency: float | None
    """Within which 95 of 100 of the last readings were acknowledged; None: there was none yet."""
    target: float | None
    """The `latency_target`, by which the cap moves; None: it stays as it is."""
    lag_rows: int | None = None
    """Rows that are there and were not read yet; None: not known."""
    lag_bytes: int | None = None
    """Bytes of these rows; None: not known."""


class SourceStatus(msgspec.Struct, frozen=True):
    """One partition that an injector reads."""

    computation: str
    source: str
    ended: bool
    """What was there was read to its end."""
    position: Any
    flow: SourceFlow | None = None
    """By the last heartbeat of its owner; None: nobody has it, or there was none yet."""


class PipelineStatus(msgspec.Struct):
    """One pipeline of a store."""

    name: str
    schema_version: str | None
    schema_current: bool
    """Whether this code can work with it; if not, nothing more is told."""
    at: str = ""
    """The moment of these figures, by the database's clock."""
    deployed: bool = False
    complete: bool = False
    """All input was read and processed, and event time is at its end: nothing is left to do."""
    workers: list[Worker] = msgspec.field(default_factory=list)
    computations: list[ComputationStatus] = msgspec.field(default_factory=list)
    intervals: list[IntervalStatus] = msgspec.field(default_factory=list)
    sources: list[SourceStatus] = msgspec.field(default_factory=list)


class Totals(NamedTuple):
    """A pipeline's counters since it was deployed, over all computations."""

    counters: Counter[str]
    low_watermark: int
    """The least of all, microseconds."""


class DeadLetterEntry(msgspec.Struct, frozen=True):
    """A record, row or timer that was given up on."""

    id: int
    computation: str
    stream: str
    key: Any
    value: str
    timestamp: str | None
    place: str
    error: str
    attempts: int
    given_up_at: str
    record_id: str | None
    traceback: str = ""


class OwnedInterval(msgspec.Struct, frozen=True):
    """An interval with who owns it, who should, and what is to become of it."""

    id: int
    computation: str
    kind: str
    """injector, computation or relay."""
    slot_from: int
    slot_to: int
    """One past the last."""
    sequencer: int
    owner: str | None
    owner_alive: bool
    """It has an owner, whose lease lasts."""
    wanted_by: str | None
    pinned: bool
    """An operator said who should own it."""
    split_at: int | None
    merge_with: int | None
    load: dict[str, Any] | None
    """What its owner said last that it costs; None: nothing."""


class PlacementEvent(msgspec.Struct, frozen=True):
    """Something that was decided or done about who owns what."""

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
    """A look into a store at one moment. Made by `inspect`."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def _rows(self, name: str, schema: str = "", **params: Any) -> list[Any]:
        statements = Statements(schema)
        views = {view: view for view in VIEWED}
        text = statements.get(name, watermark_holders="watermark_holders", **views)
        with self._connection.cursor(row_factory=namedtuple_row) as cursor:
            return cursor.execute(text, params or None).fetchall()

    def pipelines(self) -> list[str]:
        """The names of the pipelines in the store."""
        return [name for (name,) in self._rows("list_pipelines")]

    def choose(self, wanted: str | None) -> str:
        """The pipeline that is asked for, or the only one.

        Raises:
            UsageError: it is not there, or there are several, or none.
        """
        return choose(self.pipelines(), wanted)

    def status(self, pipeline: str) -> PipelineStatus:
        """How a pipeline is doing."""
        version = self._version(pipeline)
        status = PipelineStatus(pipeline, version, version == HEAD)
        if not status.schema_current:
            return status
        ((now,),) = self._rows("database_time")
        status.at = time_text(now)
        status.deployed = bool(self._rows("deployed", pipeline))
        status.workers = [_worker(row) for row in self._rows("status_workers", pipeline)]
        intervals = self._rows("status_intervals", pipeline)
        found = {
            name: _computation(name, kind, list(rows), now)
            for (name, kind), rows in groupby(intervals, key=attrgetter("name", "kind"))
        }
        status.intervals = [_interval(row) for row in intervals]
        status.sources = [_source(row) for row in intervals if row.source is not None]
        for name, backlog in self._rows("status_backlog", pipeline):
            if name in found:  # else it was removed: what was sent to it is given up
                found[name].backlog = backlog
        for name, kept in self._rows("status_dead_letters", pipeline):
            if name in found:
                found[name].dead_letters_kept = kept
        for name, kind, what, key, at, *rest in self._rows("status_holders", pipeline):
            found[name].holder = Holder(kind, what, _json(key), _iso(at) or BEGIN_OF_TIME, *rest)
        status.computations = list(found.values())
        status.complete = bool(found) and all(
            one.low_watermark == END_OF_TIME and not one.backlog for one in status.computations
        )
        return status

    def totals(self, pipeline: str) -> Totals:
        """What a pipeline has counted, and how far it is in time."""
        rows = self._rows("status_intervals", pipeline)
        counters: Counter[str] = Counter()
        for row in rows:
            counters.update(row.counters)
        return Totals(counters, min((row.low_watermark for row in rows), default=MIN_TIME))

    def _version(self, pipeline: str) -> str | None:
        statement = composed(
            "schema_version", alembic_version=sql.Identifier(pipeline, "alembic_version")
        )
        row = self._connection.execute(statement).fetchone()
        return None if row is None else str(row[0])

    def dead_letters(self, pipeline: str, limit: int) -> list[DeadLetterEntry]:
        """The newest dead letters of a pipeline, without their tracebacks."""
        self._require_current(pipeline)
        rows = self._rows("list_dead_letters", pipeline, limit=limit)
        return [_dead_letter(row) for row in rows]

    def dead_letter(self, pipeline: str, number: int) -> DeadLetterEntry:
        """One dead letter, with its traceback.

        Raises:
            UsageError: there is none with this number.
        """
        self._require_current(pipeline)
        rows = self._rows("show_dead_letter", pipeline, id=number)
        if not rows:
            raise UsageError(f"pipeline {pipeline!r} has no dead letter {number}")
        return _dead_letter(rows[0])

    def intervals(self, pipeline: str) -> list[OwnedInterval]:
        """The intervals of a pipeline, in the order of its graph and of slots."""
        self._require_current(pipeline)
        return [OwnedInterval(*row) for row in self._rows("show_intervals", pipeline)]

    def placement_events(self, pipeline: str, limit: int) -> list[PlacementEvent]:
        """What was decided and done last about who owns what, the newest first."""
        self._require_current(pipeline)
        rows = self._rows("newest_placement_events", pipeline, limit=limit)
        return [PlacementEvent(id_, _iso(at) or "", *rest) for id_, at, *rest in rows]

    def _require_current(self, pipeline: str) -> None:
        version = self._version(pipeline)
        if version != HEAD:
            raise UsageError(
                f"the schema of pipeline {pipeline!r} is at version {version}, and this code needs "
                f"{HEAD}. Run: millwheel migrate {pipeline}, with the same --store"
            )


def choose(pipelines: list[str], wanted: str | None) -> str:
    """The pipeline that is asked for, or the only one.

    Raises:
        UsageError: it is not there, or there are several, or none.
    """
    if wanted is not None:
        if wanted not in pipelines:
            raise UsageError(
                f"the store has no pipeline {wanted!r}; it has: {', '.join(pipelines) or 'none'}"
            )
        return wanted
    if not pipelines:
        raise UsageError("the store has no pipeline yet")
    if len(pipelines) > 1:
        raise UsageError(
            f"the store has several pipelines: {', '.join(pipelines)}; name one with --pipeline"
        )
    return pipelines[0]


@contextlib.contextmanager
def inspect(url: str) -> Iterator[Inspection]:
    """Look into a store, all at one moment.

    Raises:
        StoreError: it cannot be reached, or what it holds cannot be read.
    """
    with _reading(url, LOOK_SECONDS) as connection, translated():
        _begin_look(connection)
        yield Inspection(connection)


def _begin_look(connection: psycopg.Connection[Any]) -> None:
    """Begin the one moment of a look. The buckets are locked before it: one that is dropped later is
    gone for older snapshots as well, with what counted then."""
    statements = Statements("")
    for attempt in range(LOCK_ATTEMPTS):
        names = [name for (name,) in connection.execute(statements.get("list_pipelines"))]
        found = connection.execute(
            statements.get("bucket_parents"), {"pipelines": names, "tables": list(BUCKETED)}
        ).fetchall()
        connection.execute(text_of("begin_snapshot"))
        if not found:
            return
        tables = sql.SQL(", ").join(sql.Identifier(*name) for name in found)
        try:
            connection.execute(composed("lock_for_reading", tables=tables))
        except (errors.UndefinedTable, errors.InvalidSchemaName):
            if attempt == LOCK_ATTEMPTS - 1:
                raise
            connection.execute("ROLLBACK")
        else:
            return


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Postgres' errors as the engine's own."""
    try:
        yield
    except psycopg.Error as error:
        raise translate(error) from error


@contextlib.contextmanager
def _reading(
    url: str, seconds: float, search_path: tuple[str, ...] = ()
) -> Iterator[psycopg.Connection[Any]]:
    """A connection that changes nothing."""
    path = sql.SQL(",").join(map(sql.Identifier, search_path)).as_string(None)
    try:
        connection = psycopg.connect(
            make_conninfo(
                url,
                application_name="millwheel look",
                connect_timeout=CONNECT_SECONDS,
                client_encoding="utf8",
                options=f"-c search_path={path} -c timezone=UTC -c datestyle=ISO "
                f"-c statement_timeout={int(seconds * 1000)} -c jit=off",
            ),
            autocommit=True,
        )
    except psycopg.Error as error:
        raise StoreUnavailable(f"the store cannot be reached: {str(error).strip()}") from error
    with contextlib.closing(connection):
        with translated():
            connection.execute(text_of("set_read_only"))
        yield connection


# -- a user's SELECT -------------------------------------------------------------------------


class Answer:
    """What a SELECT gives: the names of its columns, and its rows as they arrive."""

    def __init__(self, columns: list[str], rows: Iterator[tuple[Any, ...]]) -> None:
        self.columns = columns
        self.rows = rows


@contextlib.contextmanager
def select(
    url: str, text: str, *, pipeline: str | None, seconds: float, as_json: bool
) -> Iterator[Answer]:
    """Run one statement of a user's that gives rows; it can change nothing.

    Args:
        pipeline: whose names need no schema; None: the only one's, if there is only one.
        as_json: give values that `msgspec.json.encode` takes, instead of text or None.

    Raises:
        UsageError: Postgres refuses the statement, or it took longer than `seconds`.
    """
    with inspect(url) as inspection:
        known = inspection.pipelines()
    several = pipeline is None and len(known) > 1
    path = () if several or not known else (choose(known, pipeline),)
    with _reading(url, seconds, (*path, "public")) as connection:
        _register_loaders(connection, as_json=as_json)
        connection.execute(text_of("begin_select"))
        try:
            columns = _columns(connection, text)
            with connection.cursor() as cursor:
                yield Answer(columns, _streamed(cursor, text))
        except errors.QueryCanceled as error:
            raise UsageError(
                f"the statement was stopped after {seconds:g} s; give it longer with --timeout"
            ) from error
        except psycopg.Error as error:
            raise _refusal(error, known if several else []) from error


def _streamed(cursor: psycopg.Cursor[Any], text: str) -> Iterator[tuple[Any, ...]]:
    yield from cursor.stream(text)


def _columns(connection: psycopg.Connection[Any], text: str) -> list[str]:
    """The columns of exactly one statement that gives rows; nothing is run yet.

    What is prepared is one statement by protocol, so that none can end the transaction and
    be followed by another one.
    """
    prepared = connection.pgconn.prepare(b"", text.encode())
    if prepared.status != psycopg.pq.ExecStatus.COMMAND_OK:
        raise errors.error_from_result(prepared, "utf-8")
    described = connection.pgconn.describe_prepared(b"")
    if described.nfields == 0:
        raise UsageError(
            "this statement gives no rows; `millwheel sql` is for reading: SELECT, WITH, TABLE, "
            "VALUES, SHOW, EXPLAIN"
        )
    return [(described.fname(i) or b"").decode() for i in range(described.nfields)]


def _refusal(error: psycopg.Error, pipelines: list[str]) -> MillwheelError:
    state = error.sqlstate or ""
    if not state or state[:2] in ("08", "53", "57", "58"):
        return translate(error)
    hint = ""
    if pipelines and state in ("42P01", "42883"):
        hint = (
            f"\nThe store has several pipelines: {', '.join(pipelines)}. Choose one with "
            f"--pipeline, or write the names with it, as in {pipelines[0]}.states"
        )
    return UsageError(f"Postgres refused the statement: {str(error).strip()}{hint}")


class _IsoLoader(Loader):
    """Times as ISO 8601 text; no Python type holds infinity or the year 10000."""

    def load(self, data: Buffer) -> str:
        return _iso(bytes(data).decode()) or ""


class _NumberLoader(Loader):
    """Numeric, digit by digit; what is no number in JSON becomes text."""

    def load(self, data: Buffer) -> Any:
        text = bytes(data)
        return msgspec.Raw(text) if re.fullmatch(rb"-?\d+(\.\d+)?", text) else text.decode()


class _RawLoader(Loader):
    """JSON, as it is."""

    def load(self, data: Buffer) -> Any:
        return msgspec.Raw(bytes(data))


_JSON_LOADERS: dict[str, type[Loader]] = {
    "timestamptz": _IsoLoader,
    "timestamp": _IsoLoader,
    "date": _IsoLoader,
    "time": TextLoader,
    "timetz": TextLoader,
    "interval": TextLoader,
    "bytea": TextLoader,
    "numeric": _NumberLoader,
    "json": _RawLoader,
    "jsonb": _RawLoader,
}


def _register_loaders(connection: psycopg.Connection[Any], *, as_json: bool) -> None:
    if as_json:
        for name, loader in _JSON_LOADERS.items():
            connection.adapters.register_loader(name, loader)
        return
    for info in psycopg.adapters.types:
        connection.adapters.register_loader(info.oid, TextLoader)
        if info.array_oid:
            connection.adapters.register_loader(info.array_oid, TextLoader)


# -- rows to what is told --------------------------------------------------------------------


def time_text(micros: int) -> str:
    """A time of the engine's in ISO 8601; its ends are infinity and -infinity."""
    if micros >= MAX_TIME:
        return END_OF_TIME
    if micros <= MIN_TIME:
        return BEGIN_OF_TIME
    return from_micros(micros).isoformat()


def _iso(text: str | None) -> str | None:
    """Postgres' text of a time in UTC as ISO 8601."""
    if text is None or " " not in text or text.endswith("BC"):
        return text
    text = text.replace(" ", "T", 1)
    return f"{text}:00" if re.search(r"[+-]\d\d\Z", text) else text


def _json(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)


def _worker(row: Any) -> Worker:
    id_, host, pid, pid_started, started_at, heartbeat_at, lease_seconds, *rest = row
    state: Literal["running", "silent", "dead"] = "running" if lease_seconds > 0 else "silent"
    if is_dead(host, pid, pid_started):
        state = "dead"
    return Worker(id_, host.split()[0], pid, started_at, heartbeat_at, lease_seconds, state, *rest)


def _computation(name: str, kind: str, intervals: list[Any], now: int) -> ComputationStatus:
    """A node, from the last commits of its intervals."""
    totals: Counter[str] = Counter()
    for row in intervals:
        totals.update(row.counters)
    low_watermark = min(row.low_watermark for row in intervals)
    known = MIN_TIME < low_watermark < MAX_TIME
    return ComputationStatus(
        name,
        kind,
        paused=intervals[0].paused,
        intervals=len(intervals),
        processed=totals["processed"],
        duplicates_dropped=totals["duplicates_dropped"],
        bloom_maybes=totals["bloom_maybes"],
        late=sum(total for counter, total in totals.items() if counter.startswith(LATE)),
        dead_letters=totals["dead_letters"] + totals["bad_rows"],
        input_watermark=time_text(min(row.input_watermark for row in intervals)),
        low_watermark=time_text(low_watermark),
        lag_seconds=(now - low_watermark) / 1e6 if known else None,
        last_commit=time_text(max(row.stamp for row in intervals)),
        counters={counter: totals[counter] for counter in sorted(totals)},
    )


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
    ended = bool(position.get("ended"))
    return SourceStatus(row.name, row.source, ended, position.get("reader"), flow)


def _dead_letter(row: Any) -> DeadLetterEntry:
    (
        id_,
        computation,
        stream,
        key,
        value,
        timestamp,
        place,
        error,
        attempts,
        at,
        record_id,
        *rest,
    ) = row
    return DeadLetterEntry(
        id_, computation, stream, _json(key), value, _iso(timestamp), place, error, attempts,
        _iso(at) or "", record_id, *rest,
    )  # fmt: skip
