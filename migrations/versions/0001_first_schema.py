"""The first schema: all tables of `millwheel.store.schema`.

Revision: 0001
"""

import sqlalchemy as sa
from alembic import context, op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    schema = context.config.attributes["schema"]
    op.execute(sa.schema.CreateSequence(sa.Sequence("sequence_number", schema=schema)))
    op.create_table(
        "bucket",
        sa.Column("id", sa.Integer(), sa.Identity(always=False), nullable=False),
        sa.Column("family", sa.Text(), nullable=False, comment="time, source or named"),
        sa.Column(
            "log", sa.BigInteger(), nullable=False, comment="log of a source bucket; otherwise 0"
        ),
        sa.Column("low", sa.BigInteger(), nullable=False, comment="first stamp or offset it holds"),
        sa.Column("high", sa.BigInteger(), nullable=False, comment="one past the last"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("family", "log", "low"),
        comment="The live buckets and their ranges",
        schema=schema,
    )
    op.create_table(
        "commit_record",
        sa.Column("interval_id", sa.BigInteger(), nullable=False),
        sa.Column("n", sa.BigInteger(), nullable=False, comment="the interval's n-th commit"),
        sa.Column("sequencer", sa.BigInteger(), nullable=False),
        sa.Column(
            "stamp",
            sa.BigInteger(),
            nullable=False,
            comment="the commit's logical time; microseconds",
        ),
        sa.Column("input_watermark", sa.BigInteger(), nullable=False),
        sa.Column(
            "low_watermark",
            sa.BigInteger(),
            nullable=False,
            comment="promised to readers from this commit on",
        ),
        sa.Column(
            "floor",
            sa.BigInteger(),
            nullable=False,
            comment="productions from before it are never sent again",
        ),
        sa.Column(
            "acked",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=False,
            comment="log -> [first not acknowledged, [[from, to], ...] beyond]",
        ),
        sa.Column(
            "position",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=True,
            comment="next row of an injector; length of part files; number of the last bundle",
        ),
        sa.Column(
            "counters",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=False,
            comment="totals since deploy",
        ),
        sa.Column(
            "percentiles",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=True,
            comment="percentile low watermarks promised; microseconds",
        ),
        comment="One row per interval and commit: the chain that makes commits ordered",
        schema=schema,
    )
    op.create_table(
        "computation",
        sa.Column("id", sa.SmallInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False, comment="injector, computation or relay"),
        sa.Column("version", sa.Integer(), nullable=False, comment="version of the state's type"),
        sa.Column(
            "state",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=False,
            comment="fingerprint of the state's type",
        ),
        sa.Column(
            "upstream",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=False,
            comment="names of the nodes that write its input streams",
        ),
        sa.Column("paused", sa.Boolean(), nullable=False, comment="an injector that must not read"),
        sa.Column(
            "removed_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="time of its removal; the row stays so that the name is not used again",
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
        comment="The nodes of the deployed graph",
        schema=schema,
    )
    op.create_table(
        "dead_letter",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("slot", sa.Integer(), nullable=False, comment="hash of the key, 0 to 65535"),
        sa.Column("computation", sa.SmallInteger(), nullable=False, comment="computation.id"),
        sa.Column("stream", sa.Text(), nullable=False, comment="the stream, or timer"),
        sa.Column("record_id", sa.UUID(), nullable=True, comment="id that deduplicates it"),
        sa.Column(
            "key",
            sa.Text(collation="C"),
            nullable=True,
            comment="the key as compact JSON, if it has one",
        ),
        sa.Column(
            "value",
            sa.Text(),
            nullable=False,
            comment="the value as JSON, or the raw text of a bad row",
        ),
        sa.Column("ts", sa.BigInteger(), nullable=True, comment="event time, microseconds"),
        sa.Column("place", sa.Text(), nullable=False, comment="its origin"),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("traceback", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column(
            "stamp",
            sa.BigInteger(),
            nullable=False,
            comment="when the engine gave up; microseconds",
        ),
        sa.PrimaryKeyConstraint("id"),
        comment="Records, rows and timers that the engine gave up on, with the reason",
        schema=schema,
    )
    op.create_index(
        "dead_letter_bad_row",
        "dead_letter",
        ["record_id"],
        unique=False,
        postgresql_where=sa.text("key IS NULL"),
        schema=schema,
    )
    op.create_table(
        "fold",
        sa.Column("interval_id", sa.BigInteger(), nullable=False),
        sa.Column(
            "through",
            sa.BigInteger(),
            nullable=False,
            comment="commits up to this n are in state and timer",
        ),
        sa.PrimaryKeyConstraint("interval_id"),
        comment="Last commit of each interval that is folded into the current tables",
        schema=schema,
    )
    op.create_table(
        "peer_secret",
        sa.Column(
            "single", sa.Boolean(), nullable=False, comment="always true: there is only one row"
        ),
        sa.Column("secret", sa.LargeBinary(), nullable=False, comment="32 random bytes"),
        sa.CheckConstraint("single"),
        sa.PrimaryKeyConstraint("single"),
        comment="The secret that workers prove to each other. Grant it to no role that only reads: "
        "a process that knows it can act as a worker",
        schema=schema,
    )
    op.create_table(
        "incarnation",
        sa.Column(
            "row",
            sa.SmallInteger(),
            autoincrement=False,
            nullable=False,
            comment="1: the only row",
        ),
        sa.Column(
            "id",
            postgresql.UUID(),
            nullable=False,
            comment="drawn by the first worker that found the table empty",
        ),
        sa.Column(
            "began_at", sa.DateTime(timezone=True), nullable=False, comment="when it was drawn"
        ),
        sa.PrimaryKeyConstraint("row"),
        comment="The current run of the server: unlogged, so that every crash recovery and every "
        "promotion of a standby empties it (decision 40)",
        schema=schema,
        prefixes=["UNLOGGED"],
    )
    op.create_table(
        "pipeline",
        sa.Column(
            "name", sa.Text(), nullable=False, comment="the pipeline's name, also the schema's"
        ),
        sa.Column(
            "gc_watermark",
            sa.BigInteger(),
            nullable=False,
            comment="productions from before it are never sent again; microseconds",
        ),
        sa.PrimaryKeyConstraint("name"),
        comment="One row: the pipeline's name, and the end of its forgotten past",
        schema=schema,
    )
    op.create_table(
        "generation",
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False, comment="1 and up"),
        sa.Column(
            "code",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=False,
            comment="the graph and the types of states and streams, as compared at start",
        ),
        sa.Column(
            "began_at",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="when it was deployed",
        ),
        sa.Column(
            "incarnation",
            sa.Text(),
            nullable=True,
            comment="incarnation of the server in which it was deployed; NULL: not known, a command began it",
        ),
        sa.PrimaryKeyConstraint("number"),
        comment="All deployed generations in order; the last one is deployed now",
        schema=schema,
    )
    op.create_table(
        "placement_event",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column(
            "at",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="by the database's clock",
        ),
        sa.Column(
            "interval_id",
            sa.BigInteger(),
            nullable=False,
            comment="key_interval.id; the row may be gone",
        ),
        sa.Column("computation", sa.SmallInteger(), nullable=False, comment="computation.id"),
        sa.Column("slot_from", sa.Integer(), nullable=False, comment="first slot"),
        sa.Column("slot_to", sa.Integer(), nullable=False, comment="one past the last slot"),
        sa.Column("what", sa.Text(), nullable=False, comment="kind of the event; see the view"),
        sa.Column("from_worker", sa.UUID(), nullable=True, comment="worker.id of the former owner"),
        sa.Column(
            "to_worker",
            sa.UUID(),
            nullable=True,
            comment="worker.id of the new or wanted owner",
        ),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        comment="Decisions about ownership and their execution, the newest only",
        schema=schema,
    )
    op.create_table(
        "straggler",
        sa.Column("log", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False, comment="position in the log"),
        sa.Column("id", sa.UUID(), nullable=False, comment="12 bytes of name, 4 bytes of digest"),
        sa.Column(
            "origin",
            sa.BigInteger(),
            nullable=False,
            comment="log of the source of its input, or 0",
        ),
        sa.Column(
            "place",
            sa.BigInteger(),
            nullable=False,
            comment="its place in the buckets: offset in the origin, or produced_at of its input",
        ),
        sa.Column("stream", sa.SmallInteger(), nullable=False),
        sa.Column(
            "receiver", sa.SmallInteger(), nullable=False, comment="computation.id of the reader"
        ),
        sa.Column("slot", sa.Integer(), nullable=False, comment="hash of the key, 0 to 65535"),
        sa.Column("key", sa.Text(collation="C"), nullable=False, comment="the key as compact JSON"),
        sa.Column("value", sa.Text(), nullable=False, comment="JSON"),
        sa.Column("version", sa.SmallInteger(), nullable=False),
        sa.Column("ts", sa.BigInteger(), nullable=False, comment="event time"),
        sa.Column(
            "hold",
            sa.BigInteger(),
            nullable=False,
            comment="its hold on the low watermark",
        ),
        sa.Column(
            "stamp", sa.BigInteger(), nullable=False, comment="when it was stored; microseconds"
        ),
        comment="Weak productions not yet acknowledged when their input record was noted as seen",
        schema=schema,
    )
    op.create_table(
        "production",
        sa.Column("log", sa.BigInteger(), nullable=False),
        sa.Column(
            "seq",
            sa.BigInteger(),
            nullable=False,
            comment="position in the log; (log, seq) is the record's id",
        ),
        sa.Column("stream", sa.SmallInteger(), nullable=False),
        sa.Column(
            "receiver", sa.SmallInteger(), nullable=False, comment="computation.id of the reader"
        ),
        sa.Column("slot", sa.Integer(), nullable=False, comment="hash of the key, 0 to 65535"),
        sa.Column("key", sa.Text(collation="C"), nullable=False, comment="the key as compact JSON"),
        sa.Column("value", sa.Text(), nullable=False, comment="JSON"),
        sa.Column("version", sa.SmallInteger(), nullable=False),
        sa.Column("ts", sa.BigInteger(), nullable=False, comment="event time"),
        sa.Column(
            "hold",
            sa.BigInteger(),
            nullable=False,
            comment="its hold on the low watermark",
        ),
        sa.Column(
            "stamp",
            sa.BigInteger(),
            nullable=False,
            comment="produced_at, the sender's logical clock",
        ),
        comment="Records sent, one row per reader, until acknowledged and their bucket dropped",
        schema=schema,
    )
    op.create_table(
        "seen_record",
        sa.Column("slot", sa.Integer(), nullable=False, comment="hash of the key, 0 to 65535"),
        sa.Column("computation", sa.SmallInteger(), nullable=False, comment="computation.id"),
        sa.Column("id", sa.UUID(), nullable=False),
        comment="Ids of records whose effects are committed",
        schema=schema,
    )
    op.create_table(
        "state",
        sa.Column("slot", sa.Integer(), nullable=False, comment="hash of the key, 0 to 65535"),
        sa.Column("computation", sa.SmallInteger(), nullable=False, comment="computation.id"),
        sa.Column("key", sa.Text(collation="C"), nullable=False, comment="the key as compact JSON"),
        sa.Column(
            "entry",
            sa.Text(collation="C"),
            nullable=False,
            comment="empty for the state object; otherwise field/entry",
        ),
        sa.Column("value", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column(
            "version", sa.SmallInteger(), nullable=False, comment="of the state's type when written"
        ),
        sa.PrimaryKeyConstraint("slot", "computation", "key", "entry"),
        comment="Current state as of the last fold; the view states adds what came after",
        schema=schema,
        postgresql_with={"fillfactor": 80},
    )
    op.create_table(
        "state_change",
        sa.Column("interval_id", sa.BigInteger(), nullable=False),
        sa.Column("n", sa.BigInteger(), nullable=False),
        sa.Column("computation", sa.SmallInteger(), nullable=False, comment="computation.id"),
        sa.Column("slot", sa.Integer(), nullable=False, comment="hash of the key, 0 to 65535"),
        sa.Column("key", sa.Text(collation="C"), nullable=False, comment="the key as compact JSON"),
        sa.Column("entry", sa.Text(collation="C"), nullable=False),
        sa.Column(
            "value", postgresql.JSONB(astext_type=sa.Text()), nullable=True, comment="NULL: removed"
        ),
        sa.Column("version", sa.SmallInteger(), nullable=False),
        comment="State as written by each commit, until it is folded and its bucket dropped",
        schema=schema,
    )
    op.create_table(
        "stream",
        sa.Column("id", sa.SmallInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False, comment="version of the values' type"),
        sa.Column(
            "type",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=False,
            comment="fingerprint of the values' type",
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
        comment="The streams of the deployed graph",
        schema=schema,
    )
    op.create_table(
        "timer",
        sa.Column("slot", sa.Integer(), nullable=False, comment="hash of the key, 0 to 65535"),
        sa.Column("computation", sa.SmallInteger(), nullable=False, comment="computation.id"),
        sa.Column("key", sa.Text(collation="C"), nullable=False, comment="the key as compact JSON"),
        sa.Column("kind", sa.Text(), nullable=False, comment="watermark, wall or hold"),
        sa.Column("tag", sa.Text(collation="C"), nullable=False),
        sa.Column("due", sa.BigInteger(), nullable=False, comment="microseconds"),
        sa.Column(
            "hold",
            sa.BigInteger(),
            nullable=False,
            comment="its hold on the low watermark; microseconds",
        ),
        sa.Column(
            "set_at",
            sa.BigInteger(),
            nullable=False,
            comment="stamp of the commit; microseconds",
        ),
        sa.PrimaryKeyConstraint("slot", "computation", "key", "kind", "tag"),
        comment="Pending timers as of the last fold; the view timers adds what came after",
        schema=schema,
    )
    op.create_index(
        "timer_by_due",
        "timer",
        ["computation", "kind", "due", "slot", "key", "tag"],
        unique=False,
        schema=schema,
    )
    op.create_table(
        "timer_change",
        sa.Column("interval_id", sa.BigInteger(), nullable=False),
        sa.Column("n", sa.BigInteger(), nullable=False),
        sa.Column("computation", sa.SmallInteger(), nullable=False, comment="computation.id"),
        sa.Column("slot", sa.Integer(), nullable=False, comment="hash of the key, 0 to 65535"),
        sa.Column("key", sa.Text(collation="C"), nullable=False, comment="the key as compact JSON"),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("tag", sa.Text(collation="C"), nullable=False),
        sa.Column("due", sa.BigInteger(), nullable=True, comment="NULL: fired or cancelled"),
        sa.Column("hold", sa.BigInteger(), nullable=True),
        sa.Column(
            "set_at",
            sa.BigInteger(),
            nullable=False,
            comment="stamp of the commit; microseconds",
        ),
        comment="Timers as set, fired and cancelled by each commit",
        schema=schema,
    )
    op.create_table(
        "worker",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False, comment="machine, boot and process namespace"),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column(
            "pid_started",
            sa.Text(),
            nullable=False,
            comment="tells a process from a later one with its pid",
        ),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column(
            "heartbeat_at",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="never goes back, whatever the database's clock does",
        ),
        sa.Column(
            "lease_seconds",
            sa.Double(),
            nullable=False,
            comment="length of its leases",
        ),
        sa.Column(
            "lease_until",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="by the database's clock",
        ),
        sa.Column(
            "stopped", sa.Boolean(), nullable=False, comment="shut down cleanly; holds nothing"
        ),
        sa.Column(
            "backends",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=False,
            comment="its server processes: [pid, start]",
        ),
        sa.Column(
            "load",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=False,
            comment="load that it reported last",
        ),
        sa.Column(
            "address", sa.Text(), nullable=False, comment="its address for other workers: host:port"
        ),
        sa.Column(
            "generation",
            sa.Integer(),
            nullable=False,
            comment="generation.number of its code",
        ),
        sa.PrimaryKeyConstraint("id"),
        comment="Worker processes, with their leases",
        schema=schema,
    )
    op.create_table(
        "key_interval",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("computation", sa.SmallInteger(), nullable=False),
        sa.Column("slot_from", sa.Integer(), nullable=False, comment="first slot"),
        sa.Column("slot_to", sa.Integer(), nullable=False, comment="one past the last slot"),
        sa.Column(
            "sequencer",
            sa.BigInteger(),
            nullable=False,
            comment="raised by every claim; fences the former owner",
        ),
        sa.Column("owner", sa.UUID(), nullable=True, comment="worker.id"),
        sa.Column("wanted_by", sa.UUID(), nullable=True, comment="worker.id of its wanted owner"),
        sa.Column(
            "generation",
            sa.Integer(),
            nullable=False,
            comment="generation.number of the newest code that has owned it; workers of older code cannot",
        ),
        sa.Column(
            "pinned",
            sa.Boolean(),
            server_default=sa.text("false"),
            nullable=False,
            comment="an operator chose its owner",
        ),
        sa.Column(
            "split_at",
            sa.Integer(),
            nullable=True,
            comment="first slot of the upper part, if its owner should split it",
        ),
        sa.Column(
            "merge_with",
            sa.BigInteger(),
            nullable=True,
            comment="id of the upper neighbour, if its owner should merge both",
        ),
        sa.ForeignKeyConstraint(
            ["computation"],
            [f"{schema}.computation.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("computation", "slot_from"),
        comment="Ranges of slots of a computation, or partitions of an injector: the unit of ownership",
        schema=schema,
    )
    op.create_table(
        "log",
        sa.Column("id", sa.BigInteger(), nullable=False, comment="from the pipeline-wide sequence"),
        sa.Column("interval_id", sa.BigInteger(), nullable=False),
        sa.Column(
            "source",
            sa.Text(),
            nullable=True,
            comment="identity of the partition, if the log is a replayable source",
        ),
        sa.Column(
            "retired", sa.Boolean(), nullable=False, comment="all its records are acknowledged"
        ),
        sa.ForeignKeyConstraint(
            ["interval_id"],
            [f"{schema}.key_interval.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        comment="Sequences of sent records: an interval opens a new one with each claim",
        schema=schema,
    )
    op.create_index(
        "log_interval_live",
        "log",
        ["interval_id"],
        unique=False,
        postgresql_where=sa.text("not retired"),
        schema=schema,
    )


def downgrade() -> None:
    raise RuntimeError("there is nothing before the first schema; use millwheel drop")
