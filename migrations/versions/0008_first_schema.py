"""The first schema.

Its number is that of the last of the steps in which it came to be before the first release, so that
a schema that was made by all of them is at this version. From here on a revision is never changed,
and each change is a new one.

Revision: 0008
"""

import sqlalchemy as sa
from alembic import context, op
from sqlalchemy.dialects import postgresql

revision = "0008"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    schema = context.config.attributes["schema"]
    op.execute(sa.schema.CreateSequence(sa.Sequence("sequence_number", schema=schema)))
    op.create_table(
        "aggregate",
        sa.Column("name", sa.Text(), nullable=False, comment="the aggregate's name"),
        sa.Column(
            "follows", sa.Text(), nullable=False, comment="the numbered table that it follows"
        ),
        sa.Column(
            "batch",
            sa.BigInteger(),
            nullable=False,
            comment="number of the last batch; each is done once",
        ),
        sa.Column(
            "read",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=True,
            comment="by sender, the number of the next row to read; NULL: make it from all rows",
        ),
        sa.Column(
            "changed_at",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="when the batch was done",
        ),
        sa.PrimaryKeyConstraint("name"),
        schema=schema,
        comment="Aggregates by Spark: how far each has followed its table",
    )
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
        schema=schema,
        comment="The live buckets and their ranges",
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
            "table_rows",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=True,
            comment="rows of each numbered table written so far",
        ),
        schema=schema,
        comment="One row per interval and commit: the chain that makes commits ordered",
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
        schema=schema,
        comment="The nodes of the deployed graph",
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
        sa.Column(
            "parked",
            sa.Text(),
            nullable=True,
            comment="in a parked key: failed (it stops the key) or waiting; null: its key goes on",
        ),
        sa.Column(
            "watermark",
            sa.BigInteger(),
            nullable=True,
            comment="in a parked key: the low watermark that it is processed with; microseconds",
        ),
        sa.PrimaryKeyConstraint("id"),
        schema=schema,
        comment="Records, rows and timers that the engine gave up on, with the reason",
    )
    op.create_index(
        "dead_letter_bad_row",
        "dead_letter",
        ["record_id"],
        unique=False,
        schema=schema,
        postgresql_where=sa.text("key IS NULL"),
    )
    op.create_index(
        "dead_letter_parked",
        "dead_letter",
        ["computation", "slot", "id"],
        unique=False,
        schema=schema,
        postgresql_where=sa.text("parked IS NOT NULL"),
    )
    op.create_table(
        "ended_sender",
        sa.Column(
            "sender",
            sa.BigInteger(),
            autoincrement=False,
            nullable=False,
            comment="id that the key interval had",
        ),
        sa.Column("table_name", sa.Text(), nullable=False, comment="a numbered table"),
        sa.Column(
            "rows",
            sa.BigInteger(),
            nullable=False,
            comment="rows of the table that it has written",
        ),
        sa.PrimaryKeyConstraint("sender", "table_name"),
        schema=schema,
        comment=(
            "Key intervals that were merged or removed, and what they have written into numbered "
            "tables"
        ),
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
        schema=schema,
        comment="Last commit of each interval that is folded into the current tables",
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
            "began_at", sa.DateTime(timezone=True), nullable=False, comment="when it was deployed"
        ),
        sa.Column(
            "incarnation",
            sa.Text(),
            nullable=True,
            comment=(
                "incarnation of the server in which it was deployed; NULL: not known, a command "
                "began it"
            ),
        ),
        sa.PrimaryKeyConstraint("number"),
        schema=schema,
        comment="All deployed generations in order; the last one is deployed now",
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
            sa.UUID(),
            nullable=False,
            comment="drawn by the first worker that found the table empty",
        ),
        sa.Column(
            "began_at", sa.DateTime(timezone=True), nullable=False, comment="when it was drawn"
        ),
        sa.PrimaryKeyConstraint("row"),
        schema=schema,
        prefixes=["UNLOGGED"],
        comment=(
            "The current run of the server: unlogged, so that every crash recovery and every "
            "promotion of a standby empties it (decision 40)"
        ),
    )
    op.create_table(
        "peer_secret",
        sa.Column(
            "single",
            sa.Boolean(),
            sa.CheckConstraint("single"),
            autoincrement=False,
            nullable=False,
            comment="always true: there is only one row",
        ),
        sa.Column("secret", sa.LargeBinary(), nullable=False, comment="32 random bytes"),
        sa.PrimaryKeyConstraint("single"),
        schema=schema,
        comment=(
            "The secret that workers prove to each other. Grant it to no role that only reads: a "
            "process that knows it can act as a worker"
        ),
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
        sa.Column(
            "id",
            sa.UUID(),
            server_default=sa.text("gen_random_uuid()"),
            nullable=False,
            comment="tells this schema from a later one of the same name; a copy has it too",
        ),
        sa.PrimaryKeyConstraint("name"),
        schema=schema,
        comment="One row: the pipeline's name, and the end of its forgotten past",
    )
    op.create_table(
        "placement_event",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column(
            "at", sa.DateTime(timezone=True), nullable=False, comment="by the database's clock"
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
            "to_worker", sa.UUID(), nullable=True, comment="worker.id of the new or wanted owner"
        ),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        schema=schema,
        comment="Decisions about ownership and their execution, the newest only",
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
        sa.Column("hold", sa.BigInteger(), nullable=False, comment="its hold on the low watermark"),
        sa.Column(
            "stamp",
            sa.BigInteger(),
            nullable=False,
            comment="produced_at, the sender's logical clock",
        ),
        schema=schema,
        comment="Records sent, one row per reader, until acknowledged and their bucket dropped",
    )
    op.create_table(
        "request",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column(
            "batch",
            sa.BigInteger(),
            nullable=False,
            comment="request.id of the first one asked with it",
        ),
        sa.Column(
            "asked_at", sa.DateTime(timezone=True), nullable=False, comment="when it was asked"
        ),
        sa.Column("actor", sa.Text(), nullable=False, comment="who asked"),
        sa.Column("reason", sa.Text(), nullable=False, comment="why, in the words of the actor"),
        sa.Column("verb", sa.Text(), nullable=False, comment="what to do"),
        sa.Column(
            "computation",
            sa.SmallInteger(),
            nullable=True,
            comment="computation.id; null: the whole pipeline",
        ),
        sa.Column("slot", sa.Integer(), nullable=True, comment="hash of the key, 0 to 65535"),
        sa.Column("key", sa.Text(collation="C"), nullable=True, comment="the key as compact JSON"),
        sa.Column("letter", sa.BigInteger(), nullable=True, comment="dead_letter.id"),
        sa.Column(
            "payload",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=True,
            comment="arguments of the verb",
        ),
        sa.Column(
            "due_at",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="not to be carried out before",
        ),
        sa.Column(
            "outcome",
            sa.Text(),
            nullable=True,
            comment="done, refused or failed; null: not carried out yet",
        ),
        sa.Column(
            "detail",
            sa.Text(),
            nullable=True,
            comment="why it was refused or has failed, or what was done",
        ),
        sa.Column(
            "settled_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="when the outcome was written",
        ),
        sa.PrimaryKeyConstraint("id"),
        schema=schema,
        comment="What operators have asked for, and what became of it",
    )
    op.create_index("request_by_batch", "request", ["batch"], unique=False, schema=schema)
    op.create_index(
        "request_of_letter",
        "request",
        ["letter"],
        unique=True,
        schema=schema,
        postgresql_where=sa.text("outcome IS NULL"),
    )
    op.create_index(
        "request_open",
        "request",
        ["id"],
        unique=False,
        schema=schema,
        postgresql_where=sa.text("outcome IS NULL"),
    )
    op.create_table(
        "seen_record",
        sa.Column("slot", sa.Integer(), nullable=False, comment="hash of the key, 0 to 65535"),
        sa.Column("computation", sa.SmallInteger(), nullable=False, comment="computation.id"),
        sa.Column("id", sa.UUID(), nullable=False),
        schema=schema,
        comment="Ids of records whose effects are committed",
    )
    op.create_table(
        "sent_id",
        sa.Column("stream", sa.SmallInteger(), nullable=False, comment="stream.id"),
        sa.Column(
            "id",
            sa.Text(collation="C"),
            nullable=False,
            comment="the sender's own id of the record",
        ),
        sa.Column("digest", sa.LargeBinary(), nullable=False, comment="of the record's value"),
        sa.Column(
            "sent_at",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="when its record was sent",
        ),
        sa.PrimaryKeyConstraint("stream", "id"),
        schema=schema,
        comment="Ids of records sent by send(): a repeat has no second effect",
    )
    op.create_index("sent_id_by_age", "sent_id", ["stream", "sent_at"], unique=False, schema=schema)
    op.create_table(
        "sent_record",
        sa.Column("stream", sa.SmallInteger(), nullable=False, comment="stream.id"),
        sa.Column(
            "seq",
            sa.BigInteger(),
            sa.Identity(always=False),
            nullable=False,
            comment="order of sending",
        ),
        sa.Column("value", sa.Text(), nullable=False, comment="JSON"),
        sa.Column("ts", sa.BigInteger(), nullable=False, comment="event time; microseconds"),
        sa.PrimaryKeyConstraint("stream", "seq"),
        schema=schema,
        comment="Records sent by send() until the injector of their stream takes them",
    )
    op.create_table(
        "spark_query",
        sa.Column(
            "number",
            sa.Integer(),
            sa.Identity(always=False),
            nullable=False,
            comment="1 and up: one for each move to Spark",
        ),
        sa.Column(
            "id",
            sa.UUID(),
            nullable=True,
            comment="Spark's id of the query; NULL: it has done no batch yet",
        ),
        sa.Column(
            "checkpoint",
            sa.Text(),
            nullable=False,
            comment="directory in which Spark keeps the state",
        ),
        sa.Column(
            "levels",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=False,
            comment="computation -> operator that runs it",
        ),
        sa.Column(
            "begins_with",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=True,
            comment="offset of the sources with which it begins; NULL: at their beginning",
        ),
        sa.Column(
            "sender",
            sa.BigInteger(),
            nullable=False,
            comment="sender of its rows in numbered tables: from the ids of key intervals",
        ),
        sa.Column(
            "batch", sa.BigInteger(), nullable=False, comment="last batch in the tables; -1: none"
        ),
        sa.Column(
            "low_watermark",
            sa.BigInteger(),
            nullable=False,
            comment="promised by the sources when that batch was cut; microseconds",
        ),
        sa.Column(
            "output_watermark",
            sa.BigInteger(),
            nullable=False,
            comment="no row to come, of those on time, is older; microseconds",
        ),
        sa.Column(
            "counters",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=False,
            comment="computation -> counter -> total",
        ),
        sa.Column(
            "table_rows",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=False,
            comment="rows of each numbered table so far",
        ),
        sa.Column(
            "began_at",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="when it was deployed or moved",
        ),
        sa.Column(
            "changed_at",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="when the batch was done",
        ),
        sa.Column(
            "ended_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="when the pipeline was moved back; NULL: it runs on Spark",
        ),
        sa.PrimaryKeyConstraint("number"),
        schema=schema,
        comment="The query that runs the pipeline on Spark, and those before it",
    )
    op.create_index(
        "spark_query_active",
        "spark_query",
        [sa.literal_column("(ended_at IS NULL)")],
        unique=True,
        schema=schema,
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_table(
        "spark_start",
        sa.Column("receiver", sa.Text(), nullable=False, comment="name of the computation"),
        sa.Column("key", sa.Text(collation="C"), nullable=False, comment="the key as compact JSON"),
        sa.Column(
            "kind",
            sa.Text(),
            nullable=False,
            comment="cells: an entry of the state; timers: a timer",
        ),
        sa.Column(
            "name",
            sa.Text(collation="C"),
            nullable=False,
            comment="name of the entry, or tag of the timer",
        ),
        sa.Column("value", sa.Text(), nullable=True, comment="value of the entry as JSON"),
        sa.Column(
            "version", sa.Integer(), nullable=True, comment="of the state's type when written"
        ),
        sa.Column(
            "due", sa.BigInteger(), nullable=True, comment="when the timer is due; microseconds"
        ),
        schema=schema,
        comment=(
            "States and timers with which the pipeline begins on Spark, until it has taken them "
            "over"
        ),
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
            "version",
            sa.SmallInteger(),
            nullable=False,
            comment="of the state's type when written",
        ),
        sa.PrimaryKeyConstraint("slot", "computation", "key", "entry"),
        schema=schema,
        comment="Current state as of the last fold; the view states adds what came after",
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
            "value",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=True,
            comment="NULL: removed",
        ),
        sa.Column("version", sa.SmallInteger(), nullable=False),
        schema=schema,
        comment="State as written by each commit, until it is folded and its bucket dropped",
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
        sa.Column("hold", sa.BigInteger(), nullable=False, comment="its hold on the low watermark"),
        sa.Column(
            "stamp", sa.BigInteger(), nullable=False, comment="when it was stored; microseconds"
        ),
        schema=schema,
        comment="Weak productions not yet acknowledged when their input record was noted as seen",
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
        schema=schema,
        comment="The streams of the deployed graph",
    )
    op.create_table(
        "taken_record",
        sa.Column(
            "interval_id",
            sa.BigInteger(),
            nullable=False,
            comment="key_interval.id of the injector",
        ),
        sa.Column(
            "number", sa.BigInteger(), nullable=False, comment="place in the log of the injector"
        ),
        sa.Column("value", sa.Text(), nullable=False, comment="JSON"),
        sa.Column("ts", sa.BigInteger(), nullable=False, comment="event time; microseconds"),
        sa.PrimaryKeyConstraint("interval_id", "number"),
        schema=schema,
        comment=(
            "Records taken by an injector until all readers of their stream have acknowledged them"
        ),
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
            "set_at", sa.BigInteger(), nullable=False, comment="stamp of the commit; microseconds"
        ),
        sa.PrimaryKeyConstraint("slot", "computation", "key", "kind", "tag"),
        schema=schema,
        comment="Pending timers as of the last fold; the view timers adds what came after",
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
            "set_at", sa.BigInteger(), nullable=False, comment="stamp of the commit; microseconds"
        ),
        schema=schema,
        comment="Timers as set, fired and cancelled by each commit",
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
        sa.Column("lease_seconds", sa.Double(), nullable=False, comment="length of its leases"),
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
            "address",
            sa.Text(),
            nullable=False,
            comment="its address for other workers: host:port",
        ),
        sa.Column(
            "generation", sa.Integer(), nullable=False, comment="generation.number of its code"
        ),
        sa.Column(
            "locked_on",
            sa.DateTime(timezone=True),
            nullable=True,
            comment=(
                "start of the server on which its heartbeats hold its liveness lock; null: the "
                "lease alone tells whether it lives"
            ),
        ),
        sa.PrimaryKeyConstraint("id"),
        schema=schema,
        comment="Worker processes, with their leases",
    )
    op.create_table(
        "inbox",
        sa.Column(
            "stream",
            sa.SmallInteger(),
            autoincrement=False,
            nullable=False,
            comment="stream.id of the stream that takes records",
        ),
        sa.Column(
            "interval_id",
            sa.BigInteger(),
            nullable=False,
            comment="key_interval.id of its injector; without that row the stream takes none",
        ),
        sa.Column(
            "requires_id", sa.Boolean(), nullable=False, comment="refuses records without an id"
        ),
        sa.Column(
            "remember",
            sa.Interval(),
            nullable=False,
            comment="how long an id is remembered after its record",
        ),
        sa.ForeignKeyConstraint(
            ["stream"],
            [f"{schema}.stream.id"],
        ),
        sa.PrimaryKeyConstraint("stream"),
        schema=schema,
        comment="Streams that take records by send(), each with the options of its Inbox",
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
            comment=(
                "generation.number of the newest code that has owned it; workers of older code "
                "cannot"
            ),
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
        schema=schema,
        comment=(
            "Ranges of slots of a computation, or partitions of an injector: the unit of ownership"
        ),
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
        schema=schema,
        comment="Sequences of sent records: an interval opens a new one with each claim",
    )
    op.create_index(
        "log_interval_live",
        "log",
        ["interval_id"],
        unique=False,
        schema=schema,
        postgresql_where=sa.text("not retired"),
    )


def downgrade() -> None:
    raise RuntimeError("there is nothing before the first schema; use millwheel drop")
