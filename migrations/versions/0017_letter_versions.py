"""Versions of the values of dead letters: a retry migrates them, as it does records.

Revision: 0017
"""

import sqlalchemy as sa
from alembic import context, op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the version. Letters that are there, and those of workers of older code, have none, and
    are read as they are."""
    op.add_column(
        "dead_letter",
        sa.Column(
            "version",
            sa.SmallInteger(),
            comment="version of the stream's type that the value is of; null: not known",
        ),
        schema=context.config.attributes["schema"],
    )


def downgrade() -> None:
    """Forget the versions: after a change of a stream's type, a retry may fail."""
    op.drop_column("dead_letter", "version", schema=context.config.attributes["schema"])
