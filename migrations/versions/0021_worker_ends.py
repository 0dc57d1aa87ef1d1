"""Why workers have ended.

Revision: 0021
"""

import sqlalchemy as sa
from alembic import context, op
from sqlalchemy.dialects import postgresql

from millwheel.migrations.schema import within

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table ``worker_end``. Workers of older code do not write it."""
    op.create_table(
        "worker_end",
        sa.Column("id", sa.BigInteger(), sa.Identity(), primary_key=True),
        sa.Column(
            "at",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="when it ended, by the database's clock",
        ),
        sa.Column(
            "worker",
            postgresql.UUID(),
            nullable=False,
            comment="worker.id; without such a row if it has ended before it registered",
        ),
        sa.Column("host", sa.Text(), nullable=False, comment="machine, boot and process namespace"),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False, comment="class of the error"),
        sa.Column("error", sa.Text(), nullable=False, comment="its text"),
        sa.Column(
            "computation",
            sa.Text(),
            comment="name of the step of the record, timer or row at fault; null: there is none",
        ),
        sa.Column("item", sa.Text(), comment="the record, timer or row at fault, as in set-aside"),
        sa.Column("key", sa.Text(collation="C"), comment="its key as compact JSON"),
        sa.Column("partition", sa.Text(), comment="the partition of a row"),
        comment="Errors with which workers have ended, the newest only",
        schema=context.config.attributes["schema"],
    )


def downgrade() -> None:
    """Forget them."""
    schema = context.config.attributes["schema"]
    within(schema, "DROP VIEW IF EXISTS worker_ends")
    op.drop_table("worker_end", schema=schema)
