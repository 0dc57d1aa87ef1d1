"""Copies of a pipeline: savepoints and forks (decision 86).

Revision: 0022
"""

import sqlalchemy as sa
from alembic import context, op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

COLUMNS = ("origin", "copied_at", "keep_until", "restore_point", "withholds")


def upgrade() -> None:
    """Add the columns. Workers of older code neither write nor read them."""
    schema = context.config.attributes["schema"]
    for column in (
        sa.Column(
            "origin",
            sa.Text(),
            comment="the pipeline or savepoint that it was copied from; null: it is no copy",
        ),
        sa.Column(
            "copied_at", sa.DateTime(timezone=True), comment="the moment that the copy shows"
        ),
        sa.Column(
            "keep_until",
            sa.DateTime(timezone=True),
            comment="of a savepoint: when it may be dropped; null: not by itself",
        ),
        sa.Column(
            "restore_point",
            sa.Text(),
            comment="of a savepoint: position of its restore point in the WAL; null: there is none",
        ),
        sa.Column(
            "withholds",
            sa.Boolean(),
            nullable=False,
            server_default=sa.text("false"),
            comment="sinks outside the store get nothing: it runs beside its origin",
        ),
    ):
        op.add_column("pipeline", column, schema=schema)


def downgrade() -> None:
    """Forget the origins of copies. Drop savepoints and forks first: code without these columns
    takes them for pipelines."""
    for column in COLUMNS:
        op.drop_column("pipeline", column, schema=context.config.attributes["schema"])
