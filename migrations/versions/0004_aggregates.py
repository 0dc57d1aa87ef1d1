"""Aggregates by Spark.

Revision: 0004
"""

import sqlalchemy as sa
from alembic import context, op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
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
        comment="Aggregates by Spark: how far each has followed its table",
        schema=context.config.attributes["schema"],
    )


def downgrade() -> None:
    op.drop_table("aggregate", schema=context.config.attributes["schema"])
