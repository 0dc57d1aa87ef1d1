"""Looks at one key, and at the holders of watermarks, that do not grow with the store.

Only functions and views change; they are made again after each migration.

Revision: 0006
"""

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing but the views changes."""


def downgrade() -> None:
    """Nothing but the views changed."""
