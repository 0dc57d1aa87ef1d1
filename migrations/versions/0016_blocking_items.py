"""Records and timers whose code blocks a worker for too long (decision 63).

Revision: 0016
"""

import sqlalchemy as sa
from alembic import context, op
from sqlalchemy.dialects import postgresql

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table ``blocking_item``. Workers of older code neither write nor read it."""
    op.create_table(
        "blocking_item",
        sa.Column("computation", sa.SmallInteger(), nullable=False, comment="computation.id"),
        sa.Column("slot", sa.Integer(), nullable=False, comment="hash of the key, 0 to 65535"),
        sa.Column("key", sa.Text(collation="C"), nullable=False, comment="the key as compact JSON"),
        sa.Column(
            "item", sa.Text(), nullable=False, comment="identifies it among those of its key"
        ),
        sa.Column(
            "worker",
            postgresql.UUID(),
            nullable=False,
            comment="worker.id of the worker that it blocked",
        ),
        sa.Column(
            "at",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="when the limit was reached",
        ),
        sa.Column(
            "error", sa.Text(), nullable=False, comment="what happened, and the lines that blocked"
        ),
        sa.PrimaryKeyConstraint("computation", "slot", "key", "item"),
        comment=(
            "Records and timers whose code has blocked a worker for longer than "
            "block_limit_seconds. The next owner of the key takes the row, and gives up on the "
            "record or timer as if its code had raised"
        ),
        schema=context.config.attributes["schema"],
    )


def downgrade() -> None:
    """Forget them: their code may block a worker again."""
    op.drop_table("blocking_item", schema=context.config.attributes["schema"])
