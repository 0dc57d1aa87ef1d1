"""Numbered tables are numbered by key interval, without gaps, and commits tell how far.

Before, a row's sender was a log, of which each claim begins one, and several tables shared the numbers. Rows from
before get senders below all others, in their order, and count as those of senders that have ended.

Revision: 0003
"""

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import context, op
from psycopg import sql
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

FORMER = -(1 << 62)
"""Added to the senders of rows from before."""

NUMBER = sql.SQL(
    """
    UPDATE {table} AS t SET sender = t.sender + %(former)s, sequence = x.number
    FROM (
        SELECT ctid AS place,
               row_number() OVER (PARTITION BY sender ORDER BY sequence) - 1 AS number
        FROM {table}
    ) AS x
    WHERE t.ctid = x.place
    """
)
COUNT = sql.SQL(
    """
    INSERT INTO {ended} (sender, table_name, rows)
    SELECT sender, %(name)s, count(*) FROM {table} GROUP BY sender
    """
)


def upgrade() -> None:
    schema = context.config.attributes["schema"]
    op.add_column(
        "commit_record",
        sa.Column(
            "table_rows",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=True,
            comment="rows of each numbered table written so far",
        ),
        schema=schema,
    )
    op.add_column(
        "pipeline",
        sa.Column(
            "id",
            sa.UUID(),
            server_default=sa.text("gen_random_uuid()"),
            nullable=False,
            comment="tells this schema from a later one of the same name; a copy has it too",
        ),
        schema=schema,
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
        comment="Key intervals that were merged or removed, and what they have written into numbered tables",
        schema=schema,
    )
    for table in sorted(set(_numbered_tables(schema))):
        _number_again(schema, table)


def _numbered_tables(schema: str) -> Iterator[str]:
    """Names of the numbered tables of all deployed graphs."""
    generation = sa.table("generation", sa.column("code"), schema=schema)
    for (code,) in op.get_bind().execute(sa.select(generation.c.code)):
        for node in code["graph"]["nodes"].values():
            for uses in node["sinks"].values():
                for sink in uses:
                    if [name for name, *_ in sink.get("columns", ())][-2:] == [
                        "sender",
                        "sequence",
                    ]:
                        yield sink["table"]


def _number_again(schema: str, name: str) -> None:
    if not sa.inspect(op.get_bind()).has_table(name, schema=schema):
        return
    connection: Any = op.get_bind().connection.driver_connection
    table = sql.Identifier(schema, name)
    connection.execute(NUMBER.format(table=table), {"former": FORMER})
    op.create_primary_key(None, name, ["sender", "sequence"], schema=schema)
    ended = sql.Identifier(schema, "ended_sender")
    connection.execute(COUNT.format(table=table, ended=ended), {"name": name})


def downgrade() -> None:
    schema = context.config.attributes["schema"]
    op.drop_table("ended_sender", schema=schema)
    op.drop_column("pipeline", "id", schema=schema)
    op.drop_column("commit_record", "table_rows", schema=schema)
