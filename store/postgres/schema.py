"""The tables of one pipeline (one Postgres schema), as SQLAlchemy Core metadata.

Seven tables are append-only and cut into *buckets*: `commit_record`, `state_change`,
`timer_change`, `production`, `straggler`, `seen_record`, `seen_run`. Here are their empty parents,
which readers query. Each bucket is a child table (``production_17`` inherits from `production`),
which writers address by name and which is dropped as a whole (`millwheel.store.postgres.buckets`).

Times are microseconds since 1970-01-01T00:00Z; the views turn them into timestamps.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    Interval,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, BIT, JSONB, UUID

metadata = MetaData()

KEY_TEXT = Text(collation="C")


def _slot() -> Column[int]:
    return Column("slot", Integer, nullable=False, comment="hash of the key, 0 to 65535")


def _key() -> Column[str]:
    return Column("key", KEY_TEXT, nullable=False, comment="the key as compact JSON")


def _keys() -> tuple[Column[Any], Column[Any]]:
    return (
        Column("slots", ARRAY(Integer), nullable=False, comment="hashes of the keys"),
        Column("keys", ARRAY(KEY_TEXT), nullable=False, comment="the keys as compact JSON"),
    )


def _computation() -> Column[int]:
    return Column("computation", SmallInteger, nullable=False, comment="computation.id")


pipeline = Table(
    "pipeline",
    metadata,
    Column("name", Text, primary_key=True, comment="the pipeline's name, also the schema's"),
    Column(
        "gc_watermark",
        BigInteger,
        nullable=False,
        comment="productions from before it are never sent again; microseconds",
    ),
    Column(
        "id",
        UUID,
        nullable=False,
        server_default=text("gen_random_uuid()"),
        comment="tells this schema from a later one of the same name; a copy has it too",
    ),
    Column(
        "origin",
        Text,
        comment="the pipeline or savepoint that it was copied from; null: it is no copy",
    ),
    Column("copied_at", DateTime(timezone=True), comment="the moment that the copy shows"),
    Column(
        "keep_until",
        DateTime(timezone=True),
        comment="of a savepoint: when it may be dropped; null: not by itself",
    ),
    Column(
        "restore_point",
        Text,
        comment="of a savepoint: position of its restore point in the WAL; null: there is none",
    ),
    Column(
        "withholds",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="sinks outside the store get nothing: it runs beside its origin",
    ),
    comment="One row: the pipeline's name, and the end of its forgotten past",
)

peer_secret = Table(
    "peer_secret",
    metadata,
    Column(
        "single",
        Boolean,
        CheckConstraint("single"),
        primary_key=True,
        autoincrement=False,
        comment="always true: there is only one row",
    ),
    Column("secret", LargeBinary, nullable=False, comment="32 random bytes"),
    comment=(
        "The secret that workers prove to each other. Grant it to no role that only reads: "
        "a process that knows it can act as a worker"
    ),
)

leader = Table(
    "leader",
    metadata,
    Column(
        "single",
        Boolean,
        CheckConstraint("single"),
        primary_key=True,
        autoincrement=False,
        comment="always true: there is only one row",
    ),
    Column("worker", UUID, comment="the worker that decides the placement; null: none has yet"),
    Column("term", BigInteger, nullable=False, comment="number of changes of the leader"),
    Column(
        "lease_until",
        DateTime(timezone=True),
        nullable=False,
        comment="when another worker may lead, even if this one lives",
    ),
    comment="The leadership: the right to write wishes (decision 22)",
)

incarnation = Table(
    "incarnation",
    metadata,
    Column("row", SmallInteger, primary_key=True, autoincrement=False, comment="1: the only row"),
    Column(
        "id", UUID, nullable=False, comment="drawn by the first worker that found the table empty"
    ),
    Column("began_at", DateTime(timezone=True), nullable=False, comment="when it was drawn"),
    comment=(
        "The current run of the server: unlogged, so that every crash recovery and every "
        "promotion of a standby empties it (decision 40)"
    ),
    prefixes=["UNLOGGED"],
)

generation = Table(
    "generation",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False, comment="1 and up"),
    Column(
        "code",
        JSONB,
        nullable=False,
        comment="the graph and the types of states and streams, as compared at start",
    ),
    Column("began_at", DateTime(timezone=True), nullable=False, comment="when it was deployed"),
    Column(
        "incarnation",
        Text,
        comment=(
            "incarnation of the server in which it was deployed; NULL: not known, a command "
            "began it"
        ),
    ),
    comment="All deployed generations in order; the last one is deployed now",
)

query = Table(
    "query",
    metadata,
    Column("id", Integer, Identity(), primary_key=True),
    Column("name", Text, nullable=False),
    Column("text", Text, nullable=False, comment="its statements"),
    Column(
        "avoided",
        ARRAY(Text),
        nullable=False,
        comment="names of former steps and streams, which it does not use again",
    ),
    Column("steps", ARRAY(Text), nullable=False, comment="computation.name of each step"),
    Column(
        "targets",
        ARRAY(Text),
        nullable=False,
        comment="the streams and tables that its statements write",
    ),
    Column(
        "revision",
        BigInteger,
        nullable=False,
        comment="number of the change that made the row as it is, among those of all queries",
    ),
    Column(
        "generation",
        Integer,
        nullable=False,
        comment="generation.number of the first code that has its text",
    ),
    Column(
        "submitted_at",
        DateTime(timezone=True),
        nullable=False,
        comment="when this text was submitted",
    ),
    Column("submitted_by", Text, nullable=False, comment="user and machine, or the given name"),
    Column("dropped_at", DateTime(timezone=True), comment="NULL: it is deployed"),
    Index("query_deployed", "name", unique=True, postgresql_where=text("dropped_at IS NULL")),
    comment="Queries that were submitted to the pipeline, besides those of its code",
)

computation = Table(
    "computation",
    metadata,
    Column("id", SmallInteger, Identity(), primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("kind", Text, nullable=False, comment="injector, computation or relay"),
    Column("version", Integer, nullable=False, comment="version of the state's type"),
    Column("state", JSONB, nullable=False, comment="fingerprint of the state's type"),
    Column(
        "upstream",
        JSONB,
        nullable=False,
        comment="names of the nodes that write its input streams",
    ),
    Column("paused", Boolean, nullable=False, comment="an injector that must not read"),
    Column(
        "removed_at",
        DateTime(timezone=True),
        comment="time of its removal; the row stays so that the name is not used again",
    ),
    comment="The nodes of the deployed graph",
)

stream = Table(
    "stream",
    metadata,
    Column("id", SmallInteger, Identity(), primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("version", Integer, nullable=False, comment="version of the values' type"),
    Column("type", JSONB, nullable=False, comment="fingerprint of the values' type"),
    comment="The streams of the deployed graph",
)

worker = Table(
    "worker",
    metadata,
    Column("id", UUID, primary_key=True),
    Column("host", Text, nullable=False, comment="machine, boot and process namespace"),
    Column("pid", Integer, nullable=False),
    Column(
        "pid_started",
        Text,
        nullable=False,
        comment="tells a process from a later one with its pid",
    ),
    Column("started_at", DateTime(timezone=True), nullable=False),
    Column(
        "heartbeat_at",
        DateTime(timezone=True),
        nullable=False,
        comment="never goes back, whatever the database's clock does",
    ),
    Column("lease_seconds", Double, nullable=False, comment="length of its leases"),
    Column(
        "lease_until", DateTime(timezone=True), nullable=False, comment="by the database's clock"
    ),
    Column("stopped", Boolean, nullable=False, comment="shut down cleanly; holds nothing"),
    Column("backends", JSONB, nullable=False, comment="its server processes: [pid, start]"),
    Column("load", JSONB, nullable=False, comment="load that it reported last"),
    Column("address", Text, nullable=False, comment="its address for other workers: host:port"),
    Column("generation", Integer, nullable=False, comment="generation.number of its code"),
    Column(
        "locked_on",
        DateTime(timezone=True),
        comment=(
            "start of the server on which its heartbeats hold its liveness lock; null: the lease "
            "alone tells whether it lives"
        ),
    ),
    comment="Worker processes, with their leases",
)

key_interval = Table(
    "key_interval",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("computation", SmallInteger, ForeignKey("computation.id"), nullable=False),
    Column("slot_from", Integer, nullable=False, comment="first slot"),
    Column("slot_to", Integer, nullable=False, comment="one past the last slot"),
    Column(
        "sequencer",
        BigInteger,
        nullable=False,
        comment="raised by every claim; fences the former owner",
    ),
    Column("owner", UUID, comment="worker.id"),
    Column("wanted_by", UUID, comment="worker.id of its wanted owner"),
    Column(
        "generation",
        Integer,
        nullable=False,
        comment=(
            "generation.number of the newest code that has owned it; workers of older code cannot"
        ),
    ),
    Column(
        "pinned",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="an operator chose its owner",
    ),
    Column(
        "split_at", Integer, comment="first slot of the upper part, if its owner should split it"
    ),
    Column(
        "merge_with",
        BigInteger,
        comment="id of the upper neighbour, if its owner should merge both",
    ),
    UniqueConstraint("computation", "slot_from"),
    comment=(
        "Ranges of slots of a computation, or partitions of an injector: the unit of ownership"
    ),
)

placement_event = Table(
    "placement_event",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("at", DateTime(timezone=True), nullable=False, comment="by the database's clock"),
    Column(
        "interval_id", BigInteger, nullable=False, comment="key_interval.id; the row may be gone"
    ),
    _computation(),
    Column("slot_from", Integer, nullable=False, comment="first slot"),
    Column("slot_to", Integer, nullable=False, comment="one past the last slot"),
    Column("what", Text, nullable=False, comment="kind of the event; see the view"),
    Column("from_worker", UUID, comment="worker.id of the former owner"),
    Column("to_worker", UUID, comment="worker.id of the new or wanted owner"),
    Column("reason", Text, nullable=False),
    comment="Decisions about ownership and their execution, the newest only",
)

log = Table(
    "log",
    metadata,
    Column("id", BigInteger, primary_key=True, comment="from the pipeline-wide sequence"),
    Column("interval_id", BigInteger, ForeignKey("key_interval.id"), nullable=False),
    Column("source", Text, comment="identity of the partition, if the log is a replayable source"),
    Column("retired", Boolean, nullable=False, comment="all its records are acknowledged"),
    Index("log_interval_live", "interval_id", postgresql_where=text("not retired")),
    comment="Sequences of sent records: an interval opens a new one with each claim",
)

ended_sender = Table(
    "ended_sender",
    metadata,
    Column(
        "sender",
        BigInteger,
        primary_key=True,
        autoincrement=False,
        comment="id that the key interval had",
    ),
    Column("table_name", Text, primary_key=True, comment="a numbered table"),
    Column("rows", BigInteger, nullable=False, comment="rows of the table that it has written"),
    comment=(
        "Key intervals that were merged or removed, and what they have written into numbered tables"
    ),
)

aggregate = Table(
    "aggregate",
    metadata,
    Column("name", Text, primary_key=True, comment="the aggregate's name"),
    Column("follows", Text, nullable=False, comment="the numbered table that it follows"),
    Column(
        "batch", BigInteger, nullable=False, comment="number of the last batch; each is done once"
    ),
    Column(
        "read",
        JSONB,
        comment="by sender, the number of the next row to read; NULL: make it from all rows",
    ),
    Column(
        "changed_at", DateTime(timezone=True), nullable=False, comment="when the batch was done"
    ),
    comment="Aggregates by Spark: how far each has followed its table",
)

spark_query = Table(
    "spark_query",
    metadata,
    Column(
        "number",
        Integer,
        Identity(),
        primary_key=True,
        comment="1 and up: one for each move to Spark",
    ),
    Column("id", UUID, comment="Spark's id of the query; NULL: it has done no batch yet"),
    Column("checkpoint", Text, nullable=False, comment="directory in which Spark keeps the state"),
    Column("levels", JSONB, nullable=False, comment="computation -> operator that runs it"),
    Column(
        "begins_with",
        JSONB,
        comment="offset of the sources with which it begins; NULL: at their beginning",
    ),
    Column(
        "sender",
        BigInteger,
        nullable=False,
        comment="sender of its rows in numbered tables: from the ids of key intervals",
    ),
    Column("batch", BigInteger, nullable=False, comment="last batch in the tables; -1: none"),
    Column(
        "low_watermark",
        BigInteger,
        nullable=False,
        comment="promised by the sources when that batch was cut; microseconds",
    ),
    Column(
        "output_watermark",
        BigInteger,
        nullable=False,
        comment="no row to come, of those on time, is older; microseconds",
    ),
    Column("counters", JSONB, nullable=False, comment="computation -> counter -> total"),
    Column("table_rows", JSONB, nullable=False, comment="rows of each numbered table so far"),
    Column(
        "began_at",
        DateTime(timezone=True),
        nullable=False,
        comment="when it was deployed or moved",
    ),
    Column(
        "changed_at", DateTime(timezone=True), nullable=False, comment="when the batch was done"
    ),
    Column(
        "ended_at",
        DateTime(timezone=True),
        comment="when the pipeline was moved back; NULL: it runs on Spark",
    ),
    Index(
        "spark_query_active",
        text("(ended_at IS NULL)"),
        unique=True,
        postgresql_where=text("ended_at IS NULL"),
    ),
    comment="The query that runs the pipeline on Spark, and those before it",
)

spark_start = Table(
    "spark_start",
    metadata,
    Column("receiver", Text, nullable=False, comment="name of the computation"),
    Column("key", KEY_TEXT, nullable=False, comment="the key as compact JSON"),
    Column("kind", Text, nullable=False, comment="cells: an entry of the state; timers: a timer"),
    Column("name", KEY_TEXT, nullable=False, comment="name of the entry, or tag of the timer"),
    Column("value", Text, comment="value of the entry as JSON"),
    Column("version", Integer, comment="of the state's type when written"),
    Column("due", BigInteger, comment="when the timer is due; microseconds"),
    comment=(
        "States and timers with which the pipeline begins on Spark, until it has taken them over"
    ),
)

bucket = Table(
    "bucket",
    metadata,
    Column("id", Integer, Identity(), primary_key=True),
    Column("family", Text, nullable=False, comment="time, source or named"),
    Column("log", BigInteger, nullable=False, comment="log of a source bucket; otherwise 0"),
    Column("low", BigInteger, nullable=False, comment="first stamp or offset it holds"),
    Column("high", BigInteger, nullable=False, comment="one past the last"),
    UniqueConstraint("family", "log", "low"),
    comment="The live buckets and their ranges",
)

fold = Table(
    "fold",
    metadata,
    Column("interval_id", BigInteger, primary_key=True),
    Column(
        "through",
        BigInteger,
        nullable=False,
        comment="commits up to this n are in state and timer",
    ),
    comment="Last commit of each interval that is folded into the current tables",
)

state = Table(
    "state",
    metadata,
    _slot(),
    _computation(),
    _key(),
    Column(
        "entry",
        KEY_TEXT,
        nullable=False,
        comment="empty for the state object; otherwise field/entry",
    ),
    Column("value", JSONB, nullable=False),
    Column("version", SmallInteger, nullable=False, comment="of the state's type when written"),
    PrimaryKeyConstraint("slot", "computation", "key", "entry"),
    comment="Current state as of the last fold; the view states adds what came after",
    # A new version of a row has room beside the old one, and no index changes.
    postgresql_with={"fillfactor": 80},
)

timer = Table(
    "timer",
    metadata,
    _slot(),
    _computation(),
    _key(),
    Column("kind", Text, nullable=False, comment="watermark, wall or hold"),
    Column("tag", KEY_TEXT, nullable=False),
    Column("due", BigInteger, nullable=False, comment="microseconds"),
    Column(
        "hold",
        BigInteger,
        nullable=False,
        comment="its hold on the low watermark; microseconds",
    ),
    Column("set_at", BigInteger, nullable=False, comment="stamp of the commit; microseconds"),
    PrimaryKeyConstraint("slot", "computation", "key", "kind", "tag"),
    Index("timer_by_due", "computation", "kind", "due", "slot", "key", "tag"),
    comment="Pending timers as of the last fold; the view timers adds what came after",
)

dead_letter = Table(
    "dead_letter",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    _slot(),
    _computation(),
    Column("stream", Text, nullable=False, comment="the stream, or timer"),
    Column("record_id", UUID, comment="id that deduplicates it"),
    Column("key", KEY_TEXT, comment="the key as compact JSON, if it has one"),
    Column(
        "value", Text, nullable=False, comment="the value as JSON, or the raw text of a bad row"
    ),
    Column("ts", BigInteger, comment="event time, microseconds"),
    Column("place", Text, nullable=False, comment="its origin"),
    Column("error", Text, nullable=False),
    Column("traceback", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("stamp", BigInteger, nullable=False, comment="when the engine gave up; microseconds"),
    Column(
        "parked",
        Text,
        comment="in a parked key: failed (it stops the key) or waiting; null: its key goes on",
    ),
    Column(
        "watermark",
        BigInteger,
        comment="in a parked key: the low watermark that it is processed with; microseconds",
    ),
    Column(
        "hold",
        BigInteger,
        comment=(
            "in a parked key: where it holds the low watermark, if its computation says so; "
            "microseconds"
        ),
    ),
    Column(
        "version",
        SmallInteger,
        comment="version of the stream's type that the value is of; null: not known",
    ),
    Index("dead_letter_bad_row", "record_id", postgresql_where=text("key IS NULL")),
    Index(
        "dead_letter_parked",
        "computation",
        "slot",
        "id",
        postgresql_where=text("parked IS NOT NULL"),
    ),
    comment="Records, rows and timers that the engine gave up on, with the reason",
)

blocking_item = Table(
    "blocking_item",
    metadata,
    _computation(),
    _slot(),
    _key(),
    Column("item", Text, nullable=False, comment="identifies it among those of its key"),
    Column("worker", UUID, nullable=False, comment="worker.id of the worker that it blocked"),
    Column("at", DateTime(timezone=True), nullable=False, comment="when the limit was reached"),
    Column("error", Text, nullable=False, comment="what happened, and the lines that blocked"),
    PrimaryKeyConstraint("computation", "slot", "key", "item"),
    comment=(
        "Records and timers whose code has blocked a worker for longer than block_limit_seconds. "
        "The next owner of the key takes the row, and gives up on the record or timer as if its "
        "code had raised"
    ),
)

worker_end = Table(
    "worker_end",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column(
        "at",
        DateTime(timezone=True),
        nullable=False,
        comment="when it ended, by the database's clock",
    ),
    Column(
        "worker",
        UUID,
        nullable=False,
        comment="worker.id; without such a row if it has ended before it registered",
    ),
    Column("host", Text, nullable=False, comment="machine, boot and process namespace"),
    Column("pid", Integer, nullable=False),
    Column("kind", Text, nullable=False, comment="class of the error"),
    Column("error", Text, nullable=False, comment="its text"),
    Column(
        "computation",
        Text,
        comment="name of the step of the record, timer or row at fault; null: there is none",
    ),
    Column("item", Text, comment="the record, timer or row at fault, as in set-aside"),
    Column("key", KEY_TEXT, comment="its key as compact JSON"),
    Column("partition", Text, comment="the partition of a row"),
    comment="Errors with which workers have ended, the newest only",
)

request = Table(
    "request",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column(
        "batch", BigInteger, nullable=False, comment="request.id of the first one asked with it"
    ),
    Column("asked_at", DateTime(timezone=True), nullable=False, comment="when it was asked"),
    Column("actor", Text, nullable=False, comment="who asked"),
    Column("reason", Text, nullable=False, comment="why, in the words of the actor"),
    Column("verb", Text, nullable=False, comment="what to do"),
    Column("computation", SmallInteger, comment="computation.id; null: the whole pipeline"),
    Column("slot", Integer, comment="hash of the key, 0 to 65535"),
    Column("key", KEY_TEXT, comment="the key as compact JSON"),
    Column("letter", BigInteger, comment="dead_letter.id"),
    Column("payload", JSONB, comment="arguments of the verb"),
    Column(
        "due_at",
        DateTime(timezone=True),
        nullable=False,
        comment="not to be carried out before",
    ),
    Column("outcome", Text, comment="done, refused or failed; null: not carried out yet"),
    Column("detail", Text, comment="why it was refused or has failed, or what was done"),
    Column("settled_at", DateTime(timezone=True), comment="when the outcome was written"),
    CheckConstraint("slot BETWEEN 0 AND 65535", name="request_slot"),
    CheckConstraint(
        "jsonb_typeof(key::jsonb) IN ('string', 'number', 'array')", name="request_key"
    ),
    Index("request_open", "id", postgresql_where=text("outcome IS NULL")),
    Index("request_by_batch", "batch"),
    Index("request_of_letter", "letter", unique=True, postgresql_where=text("outcome IS NULL")),
    comment="What operators have asked for, and what became of it",
)

commit_record = Table(
    "commit_record",
    metadata,
    Column("interval_id", BigInteger, nullable=False),
    Column("n", BigInteger, nullable=False, comment="the interval's n-th commit"),
    Column("sequencer", BigInteger, nullable=False),
    Column("stamp", BigInteger, nullable=False, comment="the commit's logical time; microseconds"),
    Column("input_watermark", BigInteger, nullable=False),
    Column(
        "low_watermark",
        BigInteger,
        nullable=False,
        comment="promised to readers from this commit on",
    ),
    Column(
        "floor",
        BigInteger,
        nullable=False,
        comment="productions from before it are never sent again",
    ),
    Column(
        "acked",
        JSONB,
        nullable=False,
        comment="log -> [first not acknowledged, [[from, to], ...] beyond]",
    ),
    Column(
        "position",
        JSONB,
        comment="next row of an injector; length of part files; number of the last bundle",
    ),
    Column("counters", JSONB, nullable=False, comment="totals since deploy"),
    Column("table_rows", JSONB, comment="rows of each numbered table written so far"),
    comment="One row per interval and commit: the chain that makes commits ordered",
)

state_change = Table(
    "state_change",
    metadata,
    Column("interval_id", BigInteger, nullable=False),
    Column("n", BigInteger, nullable=False),
    _computation(),
    Column("version", SmallInteger, nullable=False),
    *_keys(),
    Column("entries", ARRAY(KEY_TEXT), comment="null: all empty, the plain parts of states"),
    Column("values", ARRAY(JSONB), nullable=False, comment="NULL: removed"),
    comment="State as written by each commit, as columns, until it is folded and its bucket "
    "dropped",
)

timer_change = Table(
    "timer_change",
    metadata,
    Column("interval_id", BigInteger, nullable=False),
    Column("n", BigInteger, nullable=False),
    _computation(),
    _slot(),
    _key(),
    Column("kind", Text, nullable=False),
    Column("tag", KEY_TEXT, nullable=False),
    Column("due", BigInteger, comment="NULL: fired or cancelled"),
    Column("hold", BigInteger),
    Column("set_at", BigInteger, nullable=False, comment="stamp of the commit; microseconds"),
    comment="Timers as set, fired and cancelled by each commit",
)

production = Table(
    "production",
    metadata,
    Column("log", BigInteger, nullable=False),
    Column("last", BigInteger, nullable=False, comment="position in the log of the last record"),
    Column(
        "first",
        BigInteger,
        nullable=False,
        comment="that of the first; log and position are a record's id",
    ),
    Column("stream", SmallInteger, nullable=False),
    Column("receiver", SmallInteger, nullable=False, comment="computation.id of the reader"),
    Column("version", SmallInteger, nullable=False),
    Column("stamp", BigInteger, nullable=False, comment="produced_at, the sender's logical clock"),
    *_keys(),
    Column("values", ARRAY(Text), nullable=False, comment="JSON"),
    Column("ts", ARRAY(BigInteger), nullable=False, comment="event times"),
    Column("holds", ARRAY(BigInteger), nullable=False, comment="holds on the low watermark"),
    comment="Records sent to one reader, in consecutive places of a log, as columns, until "
    "acknowledged and their bucket dropped",
)

straggler = Table(
    "straggler",
    metadata,
    Column("log", BigInteger, nullable=False),
    Column("seq", BigInteger, nullable=False, comment="position in the log"),
    Column("id", UUID, nullable=False, comment="12 bytes of name, 4 bytes of digest"),
    Column("origin", BigInteger, nullable=False, comment="log of the source of its input, or 0"),
    Column(
        "place",
        BigInteger,
        nullable=False,
        comment="its place in the buckets: offset in the origin, or produced_at of its input",
    ),
    Column("stream", SmallInteger, nullable=False),
    Column("receiver", SmallInteger, nullable=False, comment="computation.id of the reader"),
    _slot(),
    _key(),
    Column("value", Text, nullable=False, comment="JSON"),
    Column("version", SmallInteger, nullable=False),
    Column("ts", BigInteger, nullable=False, comment="event time"),
    Column("hold", BigInteger, nullable=False, comment="its hold on the low watermark"),
    Column("stamp", BigInteger, nullable=False, comment="when it was stored; microseconds"),
    comment="Weak productions not yet acknowledged when their input record was noted as seen",
)

seen_record = Table(
    "seen_record",
    metadata,
    _slot(),
    _computation(),
    Column("id", UUID, nullable=False),
    comment="Ids in no order of records whose effects are committed: of users, and of weak "
    "productions",
)

seen_run = Table(
    "seen_run",
    metadata,
    Column("log", BigInteger, nullable=False, comment="log.id"),
    Column("last", BigInteger, nullable=False, comment="last number, within 4,096 of the first"),
    Column("first", BigInteger, nullable=False, comment="first number"),
    _computation(),
    Column("present", BIT(varying=True), comment="one bit a number; null: all"),
    comment="Numbers of rows and strong productions whose effects are committed",
)

inbox = Table(
    "inbox",
    metadata,
    Column(
        "stream",
        SmallInteger,
        ForeignKey("stream.id"),
        primary_key=True,
        autoincrement=False,
        comment="stream.id of the stream that takes records",
    ),
    Column(
        "interval_id",
        BigInteger,
        nullable=False,
        comment="key_interval.id of its injector; without that row the stream takes none",
    ),
    Column("requires_id", Boolean, nullable=False, comment="refuses records without an id"),
    Column(
        "remember",
        Interval,
        nullable=False,
        comment="how long an id is remembered after its record",
    ),
    comment="Streams that take records by send(), each with the options of its Inbox",
)

sent_record = Table(
    "sent_record",
    metadata,
    Column("stream", SmallInteger, nullable=False, comment="stream.id"),
    Column("seq", BigInteger, Identity(), nullable=False, comment="order of sending"),
    Column("value", Text, nullable=False, comment="JSON"),
    Column("ts", BigInteger, nullable=False, comment="event time; microseconds"),
    PrimaryKeyConstraint("stream", "seq"),
    comment="Records sent by send() until the injector of their stream takes them",
)

taken_record = Table(
    "taken_record",
    metadata,
    Column("interval_id", BigInteger, nullable=False, comment="key_interval.id of the injector"),
    Column("number", BigInteger, nullable=False, comment="place in the log of the injector"),
    Column("value", Text, nullable=False, comment="JSON"),
    Column("ts", BigInteger, nullable=False, comment="event time; microseconds"),
    PrimaryKeyConstraint("interval_id", "number"),
    comment=(
        "Records taken by an injector until all readers of their stream have acknowledged them"
    ),
)

sent_id = Table(
    "sent_id",
    metadata,
    Column("stream", SmallInteger, nullable=False, comment="stream.id"),
    Column("id", KEY_TEXT, nullable=False, comment="the sender's own id of the record"),
    Column("digest", LargeBinary, nullable=False, comment="of the record's value"),
    Column("sent_at", DateTime(timezone=True), nullable=False, comment="when its record was sent"),
    PrimaryKeyConstraint("stream", "id"),
    Index("sent_id_by_age", "stream", "sent_at"),
    comment="Ids of records sent by send(): a repeat has no second effect",
)

__all__ = ["metadata"]
