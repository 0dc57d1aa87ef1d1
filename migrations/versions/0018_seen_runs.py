"""Numbers of seen rows and strong productions: one row for a run of them in place of one for each.

Revision: 0018
"""

import sqlalchemy as sa
from alembic import context, op
from sqlalchemy.dialects import postgresql

from millwheel.migrations.schema import within

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

TO_RUNS = """
DO $$
DECLARE
    b record;
BEGIN
    -- A worker that still runs may be writing ids, or making a bucket.
    LOCK TABLE bucket IN SHARE ROW EXCLUSIVE MODE;
    FOR b IN SELECT id FROM bucket ORDER BY id LOOP
        EXECUTE format('LOCK TABLE seen_record_%s IN ACCESS EXCLUSIVE MODE', b.id);
    END LOOP;
    FOR b IN SELECT id, family FROM bucket ORDER BY id LOOP
        EXECUTE format(
            'CREATE TABLE seen_run_%s (LIKE seen_run INCLUDING STORAGE, '
            'PRIMARY KEY (computation, log, last))', b.id
        );
        EXECUTE format('ALTER TABLE seen_run_%s INHERIT seen_run', b.id);
        CONTINUE WHEN b.family = 'named';
        -- Ids below the limit are numbers of logs. Where none is missing, they grow as their places
        -- do; each 4,096 numbers another run begins.
        EXECUTE format(
            'INSERT INTO seen_run_%1$s (log, last, first, computation) '
            'SELECT log, max(number), min(number), computation FROM ('
            '    SELECT computation, log, number, number - row_number() OVER ('
            '        PARTITION BY computation, log ORDER BY number'
            '    ) AS island FROM ('
            '        SELECT DISTINCT computation, '
            '            (''x'' || left(hex, 16))::bit(64)::bigint AS log, '
            '            (''x'' || right(hex, 16))::bit(64)::bigint AS number '
            '        FROM seen_record_%1$s, translate(id::text, ''-'', '''') AS hex '
            '        WHERE id < ''80000000-0000-0000-0000-000000000000'''
            '    ) AS ids'
            ') AS numbers GROUP BY computation, log, island, number / 4096', b.id
        );
        EXECUTE format(
            'DELETE FROM seen_record_%s WHERE id < ''80000000-0000-0000-0000-000000000000''', b.id
        );
        -- Workers of former code that still run would write further ones, where nothing looks.
        EXECUTE format(
            'ALTER TABLE seen_record_%s ADD CONSTRAINT workers_of_older_code_have_to_be_restarted '
            'CHECK (id >= ''80000000-0000-0000-0000-000000000000'')', b.id
        );
    END LOOP;
END
$$
"""

TO_ROWS = """
DO $$
DECLARE
    b record;
BEGIN
    -- A worker that still runs may be writing ids, or making a bucket.
    LOCK TABLE bucket IN SHARE ROW EXCLUSIVE MODE;
    FOR b IN SELECT id FROM bucket ORDER BY id LOOP
        EXECUTE format('LOCK TABLE seen_record_%s IN ACCESS EXCLUSIVE MODE', b.id);
    END LOOP;
    FOR b IN SELECT id FROM bucket ORDER BY id LOOP
        EXECUTE format(
            'ALTER TABLE seen_record_%s '
            'DROP CONSTRAINT IF EXISTS workers_of_older_code_have_to_be_restarted', b.id
        );
        EXECUTE format(
            'INSERT INTO seen_record_%1$s (slot, computation, id) '
            'SELECT 0, computation, '
            '    (lpad(to_hex(log), 16, ''0'') || lpad(to_hex(number), 16, ''0''))::uuid '
            'FROM seen_run_%1$s, generate_series(first, last) AS n (number) '
            'WHERE present IS NULL OR get_bit(present, (number - first)::integer) = 1', b.id
        );
        EXECUTE format('DROP TABLE seen_run_%s', b.id);
    END LOOP;
END
$$
"""

OLD_COMMENT = "Ids of records whose effects are committed"
NEW_COMMENT = (
    "Ids in no order of records whose effects are committed: of users, and of weak productions"
)


def upgrade() -> None:
    """Make the tables, and put the numbers of the buckets that are there into runs."""
    schema = context.config.attributes["schema"]
    op.create_table(
        "seen_run",
        sa.Column("log", sa.BigInteger(), nullable=False, comment="log.id"),
        sa.Column(
            "last",
            sa.BigInteger(),
            nullable=False,
            comment="last number, within 4,096 of the first",
        ),
        sa.Column("first", sa.BigInteger(), nullable=False, comment="first number"),
        sa.Column("computation", sa.SmallInteger(), nullable=False, comment="computation.id"),
        sa.Column("present", postgresql.BIT(varying=True), comment="one bit a number; null: all"),
        schema=schema,
        comment="Numbers of rows and strong productions whose effects are committed",
    )
    op.create_table_comment("seen_record", NEW_COMMENT, existing_comment=OLD_COMMENT, schema=schema)
    within(schema, TO_RUNS)


def downgrade() -> None:
    """Put the numbers back, one row for each, in slot 0: they are looked up in all slots."""
    schema = context.config.attributes["schema"]
    within(schema, TO_ROWS)
    op.drop_table("seen_run", schema=schema)
    op.create_table_comment("seen_record", OLD_COMMENT, existing_comment=NEW_COMMENT, schema=schema)
