"""``disk_use`` shows how long rows stay.

Only a view changes; it is made again after each migration.

Revision: 0012
"""

revision = "0012"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing but the view changes."""


def downgrade() -> None:
    """Nothing but the view changed."""
