"""${message}

Revision: ${up_revision}, after ${down_revision}
"""

from alembic import context, op
import sqlalchemy as sa

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    schema = context.config.attributes["schema"]
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    raise RuntimeError("going back needs the code that knows how; restore a backup instead")
