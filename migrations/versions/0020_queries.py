"""Queries that are submitted to a pipeline.

Revision: 0020
"""

import sqlalchemy as sa
from alembic import context, op
from sqlalchemy.dialects.postgresql import ARRAY

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table."""
    schema = context.config.attributes["schema"]
    op.create_table(
        "query",
        sa.Column("id", sa.Integer(), sa.Identity(), primary_key=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False, comment="its statements"),
        sa.Column(
            "avoided",
            ARRAY(sa.Text()),
            nullable=False,
            comment="names of former steps and streams, which it does not use again",
        ),
        sa.Column(
            "steps", ARRAY(sa.Text()), nullable=False, comment="computation.name of each step"
        ),
        sa.Column(
            "targets",
            ARRAY(sa.Text()),
            nullable=False,
            comment="the streams and tables that its statements write",
        ),
        sa.Column(
            "revision",
            sa.BigInteger(),
            nullable=False,
            comment="number of the change that made the row as it is, among those of all queries",
        ),
        sa.Column(
            "generation",
            sa.Integer(),
            nullable=False,
            comment="generation.number of the first code that has its text",
        ),
        sa.Column(
            "submitted_at",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="when this text was submitted",
        ),
        sa.Column(
            "submitted_by", sa.Text(), nullable=False, comment="user and machine, or the given name"
        ),
        sa.Column("dropped_at", sa.DateTime(timezone=True), comment="NULL: it is deployed"),
        schema=schema,
        comment="Queries that were submitted to the pipeline, besides those of its code",
    )
    op.create_index(
        "query_deployed",
        "query",
        ["name"],
        unique=True,
        postgresql_where=sa.text("dropped_at IS NULL"),
        schema=schema,
    )


def downgrade() -> None:
    """Forget the queries. Drop them first: code without them does not fit their steps."""
    op.drop_table("query", schema=context.config.attributes["schema"])
