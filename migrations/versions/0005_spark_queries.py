"""Pipelines that run on Spark.

Revision: 0005
"""

import sqlalchemy as sa
from alembic import context, op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    schema = context.config.attributes["schema"]
    op.create_table(
        "spark_query",
        sa.Column(
            "number",
            sa.Integer(),
            sa.Identity(),
            nullable=False,
            comment="1 and up: one for each move to Spark",
        ),
        sa.Column(
            "id",
            postgresql.UUID(),
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
            "batch",
            sa.BigInteger(),
            nullable=False,
            comment="last batch in the tables; -1: none",
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
        comment="The query that runs the pipeline on Spark, and those before it",
        schema=schema,
    )
    op.create_index(
        "spark_query_active",
        "spark_query",
        [sa.text("(ended_at IS NULL)")],
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
        comment="States and timers with which the pipeline begins on Spark, until it has taken them over",
        schema=schema,
    )


def downgrade() -> None:
    op.drop_table("spark_start", schema=context.config.attributes["schema"])
    op.drop_table("spark_query", schema=context.config.attributes["schema"])
