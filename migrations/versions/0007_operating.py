"""The liveness lock of workers (decision 58), and requests to the owners of keys (decision 59).

Revision: 0007
"""

import sqlalchemy as sa
from alembic import context, op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add ``worker.locked_on`` and the table ``request``.

    Workers of older code leave the column null, so their leases decide; they carry out no request.
    """
    schema = context.config.attributes["schema"]
    op.add_column(
        "worker",
        sa.Column(
            "locked_on",
            sa.DateTime(timezone=True),
            comment="start of the server on which its heartbeats hold its liveness lock; null: the lease alone "
            "tells whether it lives",
        ),
        schema=schema,
    )
    op.create_table(
        "request",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column(
            "batch",
            sa.BigInteger(),
            nullable=False,
            comment="request.id of the first one asked with it",
        ),
        sa.Column(
            "asked_at", sa.DateTime(timezone=True), nullable=False, comment="when it was asked"
        ),
        sa.Column("actor", sa.Text(), nullable=False, comment="who asked"),
        sa.Column("reason", sa.Text(), nullable=False, comment="why, in the words of the actor"),
        sa.Column("verb", sa.Text(), nullable=False, comment="what to do"),
        sa.Column(
            "computation", sa.SmallInteger(), comment="computation.id; null: the whole pipeline"
        ),
        sa.Column("slot", sa.Integer(), comment="hash of the key, 0 to 65535"),
        sa.Column("key", sa.Text(collation="C"), comment="the key as compact JSON"),
        sa.Column("letter", sa.BigInteger(), comment="dead_letter.id"),
        sa.Column("payload", postgresql.JSONB(), comment="arguments of the verb"),
        sa.Column(
            "due_at",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="not to be carried out before",
        ),
        sa.Column(
            "outcome", sa.Text(), comment="done, refused or failed; null: not carried out yet"
        ),
        sa.Column(
            "detail", sa.Text(), comment="why it was refused or has failed, or what was done"
        ),
        sa.Column("settled_at", sa.DateTime(timezone=True), comment="when the outcome was written"),
        sa.PrimaryKeyConstraint("id"),
        schema=schema,
        comment="What operators have asked for, and what became of it",
    )
    op.create_index(
        "request_open",
        "request",
        ["id"],
        schema=schema,
        postgresql_where=sa.text("outcome IS NULL"),
    )
    op.create_index("request_by_batch", "request", ["batch"], schema=schema)
    op.create_index(
        "request_of_letter",
        "request",
        ["letter"],
        unique=True,
        schema=schema,
        postgresql_where=sa.text("outcome IS NULL"),
    )


def downgrade() -> None:
    """Leave the end of dead workers to their leases, and drop all requests."""
    schema = context.config.attributes["schema"]
    op.drop_table("request", schema=schema)
    op.drop_column("worker", "locked_on", schema=schema)
