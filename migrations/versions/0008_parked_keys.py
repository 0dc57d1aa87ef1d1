"""Parked keys (decision 60).

Revision: 0008
"""

import sqlalchemy as sa
from alembic import context, op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the part of a dead letter in a parked key. Workers of older code park no keys, and know none."""
    schema = context.config.attributes["schema"]
    op.add_column(
        "dead_letter",
        sa.Column(
            "parked",
            sa.Text(),
            comment="in a parked key: failed (it stops the key) or waiting; null: its key goes on",
        ),
        schema=schema,
    )
    op.add_column(
        "dead_letter",
        sa.Column(
            "watermark",
            sa.BigInteger(),
            comment="in a parked key: the low watermark that it is processed with; microseconds",
        ),
        schema=schema,
    )
    op.create_index(
        "dead_letter_parked",
        "dead_letter",
        ["computation", "slot", "id"],
        schema=schema,
        postgresql_where=sa.text("parked IS NOT NULL"),
    )


def downgrade() -> None:
    """Forget which keys are parked; their dead letters stay."""
    schema = context.config.attributes["schema"]
    op.drop_index("dead_letter_parked", "dead_letter", schema=schema)
    op.drop_column("dead_letter", "watermark", schema=schema)
    op.drop_column("dead_letter", "parked", schema=schema)
