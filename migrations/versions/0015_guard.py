"""The leadership as a row (decision 22).

Revision: 0015
"""

import sqlalchemy as sa
from alembic import context, op

revision = "0015"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table `leader` with its row. Workers of older code lead by a lock of their own: for
    as long as both run, two may write wishes, each of which is a compare-and-set."""
    schema = context.config.attributes["schema"]
    leader = op.create_table(
        "leader",
        sa.Column(
            "single",
            sa.Boolean(),
            sa.CheckConstraint("single"),
            primary_key=True,
            autoincrement=False,
            comment="always true: there is only one row",
        ),
        sa.Column(
            "worker",
            sa.UUID(),
            comment="the worker that decides the placement; null: none has yet",
        ),
        sa.Column(
            "term", sa.BigInteger(), nullable=False, comment="number of changes of the leader"
        ),
        sa.Column(
            "lease_until",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="when another worker may lead, even if this one lives",
        ),
        schema=schema,
        comment="The leadership: the right to write wishes (decision 22)",
    )
    op.execute(sa.insert(leader).values(single=True, term=0, lease_until=sa.func.now()))


def downgrade() -> None:
    """Go back to a leadership by an advisory lock."""
    schema = context.config.attributes["schema"]
    op.drop_table("leader", schema=schema)
