"""Productions and changed states as columns: one row for all of a commit in place of one for each.

Revision: 0019
"""

from typing import Any

import sqlalchemy as sa
from alembic import context, op
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from millwheel.migrations.schema import within

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

KEY_TEXT = sa.Text(collation="C")

SET_ASIDE = """
DO $$
DECLARE
    b record;
    parent text;
BEGIN
    -- A worker that still runs may be making a bucket, or writing: then the new name waits for it.
    LOCK TABLE bucket IN SHARE ROW EXCLUSIVE MODE;
    FOREACH parent IN ARRAY ARRAY['state_change', 'production'] LOOP
        EXECUTE format('ALTER TABLE %1$s RENAME TO former_%1$s', parent);
        FOR b IN SELECT id FROM bucket WHERE family = 'time' ORDER BY id LOOP
            EXECUTE format('ALTER TABLE %1$s_%2$s RENAME TO former_%1$s_%2$s', parent, b.id);
        END LOOP;
    END LOOP;
END
$$
"""

MOVE = """
DO $$
DECLARE
    b record;
BEGIN
    FOR b IN SELECT id FROM bucket WHERE family = 'time' ORDER BY id LOOP
        EXECUTE format(
            'CREATE TABLE state_change_%s (LIKE state_change INCLUDING STORAGE)', b.id
        );
        EXECUTE format('CREATE INDEX ON state_change_%s (interval_id, n)', b.id);
        EXECUTE format(
            'CREATE TABLE production_%s (LIKE production INCLUDING STORAGE, PRIMARY KEY ({key}))',
            b.id
        );
        EXECUTE format({states}, b.id);
        EXECUTE format({productions}, b.id);
        EXECUTE format('ALTER TABLE state_change_%s INHERIT state_change', b.id);
        EXECUTE format('ALTER TABLE production_%s INHERIT production', b.id);
    END LOOP;
END
$$
"""

STATES_TO_COLUMNS = """
            'INSERT INTO state_change_%1$s '
            '    (interval_id, n, computation, version, slots, keys, entries, values) '
            'SELECT interval_id, n, computation, version, array_agg(slot), array_agg(key), '
            '    array_agg(entry), array_agg(value) '
            'FROM ('
            '    SELECT *, row_number() OVER w / 1024 AS part, '
            '        sum(octet_length(value::text)) OVER w / 1048576 AS mebibyte '
            '    FROM former_state_change_%1$s WINDOW w AS ('
            '        PARTITION BY interval_id, n, computation, version ROWS UNBOUNDED PRECEDING'
            '    )'
            ') AS s GROUP BY interval_id, n, computation, version, part, mebibyte'
"""

PRODUCTIONS_TO_COLUMNS = """
            'INSERT INTO production_%1$s (log, last, first, stream, receiver, version, stamp, '
            '    slots, keys, values, ts, holds) '
            'SELECT log, max(seq), min(seq), stream, receiver, version, stamp, '
            '    array_agg(slot ORDER BY seq), array_agg(key ORDER BY seq), '
            '    array_agg(value ORDER BY seq), array_agg(ts ORDER BY seq), '
            '    array_agg(hold ORDER BY seq) '
            'FROM ('
            '    SELECT *, seq - row_number() OVER w AS island, '
            '        sum(octet_length(value)) OVER w / 1048576 AS mebibyte '
            '    FROM former_production_%1$s WINDOW w AS ('
            '        PARTITION BY log, stream, receiver, version, stamp ORDER BY seq'
            '    )'
            ') AS p GROUP BY log, stream, receiver, version, stamp, island, seq / 1024, mebibyte'
"""

STATES_TO_ROWS = """
            'INSERT INTO state_change_%1$s '
            '    (interval_id, n, computation, slot, key, entry, value, version) '
            'SELECT s.interval_id, s.n, s.computation, e.slot, e.key, coalesce(e.entry, ''''), '
            '    e.value, s.version '
            'FROM former_state_change_%1$s AS s CROSS JOIN LATERAL '
            '    unnest(s.slots, s.keys, s.entries, s.values) AS e (slot, key, entry, value)'
"""

PRODUCTIONS_TO_ROWS = """
            'INSERT INTO production_%1$s '
            '    (log, seq, stream, receiver, slot, key, value, version, ts, hold, stamp) '
            'SELECT p.log, p.first + e.place - 1, p.stream, p.receiver, e.slot, e.key, e.value, '
            '    p.version, e.ts, e.hold, p.stamp '
            'FROM former_production_%1$s AS p CROSS JOIN LATERAL '
            '    unnest(p.slots, p.keys, p.values, p.ts, p.holds) '
            '    WITH ORDINALITY AS e (slot, key, value, ts, hold, place)'
"""


def upgrade() -> None:
    """Put what is in the buckets into columns. Workers of former code are refused from then on:
    there is no column `seq` or `slot` for them."""
    schema = context.config.attributes["schema"]
    within(schema, SET_ASIDE)
    op.create_table(
        "state_change",
        _column("interval_id", sa.BigInteger()),
        _column("n", sa.BigInteger()),
        _column("computation", sa.SmallInteger(), "computation.id"),
        _column("version", sa.SmallInteger()),
        _column("slots", ARRAY(sa.Integer()), "hashes of the keys"),
        _column("keys", ARRAY(KEY_TEXT), "the keys as compact JSON"),
        sa.Column("entries", ARRAY(KEY_TEXT), comment="null: all empty, the plain parts of states"),
        _column("values", ARRAY(JSONB()), "NULL: removed"),
        schema=schema,
        comment="State as written by each commit, as columns, until it is folded and its bucket "
        "dropped",
    )
    op.create_table(
        "production",
        _column("log", sa.BigInteger()),
        _column("last", sa.BigInteger(), "position in the log of the last record"),
        _column("first", sa.BigInteger(), "that of the first; log and position are a record's id"),
        _column("stream", sa.SmallInteger()),
        _column("receiver", sa.SmallInteger(), "computation.id of the reader"),
        _column("version", sa.SmallInteger()),
        _column("stamp", sa.BigInteger(), "produced_at, the sender's logical clock"),
        _column("slots", ARRAY(sa.Integer()), "hashes of the keys"),
        _column("keys", ARRAY(KEY_TEXT), "the keys as compact JSON"),
        _column("values", ARRAY(sa.Text()), "JSON"),
        _column("ts", ARRAY(sa.BigInteger()), "event times"),
        _column("holds", ARRAY(sa.BigInteger()), "holds on the low watermark"),
        schema=schema,
        comment="Records sent to one reader, in consecutive places of a log, as columns, until "
        "acknowledged and their bucket dropped",
    )
    for table, columns in {
        "state_change": ("slots", "keys", "entries", "values"),
        "production": ("slots", "keys", "values", "ts", "holds"),
    }.items():
        for column in columns:  # to compress them would take longer than to write them
            within(schema, f"ALTER TABLE {table} ALTER {column} SET STORAGE EXTERNAL")
    _move(schema, "log, last", STATES_TO_COLUMNS, PRODUCTIONS_TO_COLUMNS)


def downgrade() -> None:
    """Give each entry and each record a row of its own again."""
    schema = context.config.attributes["schema"]
    within(schema, SET_ASIDE)
    op.create_table(
        "state_change",
        _column("interval_id", sa.BigInteger()),
        _column("n", sa.BigInteger()),
        _column("computation", sa.SmallInteger(), "computation.id"),
        _column("slot", sa.Integer(), "hash of the key, 0 to 65535"),
        _column("key", KEY_TEXT, "the key as compact JSON"),
        _column("entry", KEY_TEXT),
        sa.Column("value", JSONB(), comment="NULL: removed"),
        _column("version", sa.SmallInteger()),
        schema=schema,
        comment="State as written by each commit, until it is folded and its bucket dropped",
    )
    op.create_table(
        "production",
        _column("log", sa.BigInteger()),
        _column("seq", sa.BigInteger(), "position in the log; (log, seq) is the record's id"),
        _column("stream", sa.SmallInteger()),
        _column("receiver", sa.SmallInteger(), "computation.id of the reader"),
        _column("slot", sa.Integer(), "hash of the key, 0 to 65535"),
        _column("key", KEY_TEXT, "the key as compact JSON"),
        _column("value", sa.Text(), "JSON"),
        _column("version", sa.SmallInteger()),
        _column("ts", sa.BigInteger(), "event time"),
        _column("hold", sa.BigInteger(), "its hold on the low watermark"),
        _column("stamp", sa.BigInteger(), "produced_at, the sender's logical clock"),
        schema=schema,
        comment="Records sent, one row per reader, until acknowledged and their bucket dropped",
    )
    _move(schema, "log, seq", STATES_TO_ROWS, PRODUCTIONS_TO_ROWS)


def _column(name: str, kind: Any, comment: str | None = None) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False, comment=comment)


def _move(schema: str, key: str, states: str, productions: str) -> None:
    """Fill the new tables from those that were set aside. The views on these go with them, and are
    made again after all migrations."""
    within(schema, MOVE.format(key=key, states=states, productions=productions))
    within(schema, "DROP TABLE former_state_change, former_production CASCADE")
