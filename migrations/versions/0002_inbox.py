"""The inbox: records that users send in their own transactions.

Revision: 0002
"""

import sqlalchemy as sa
from alembic import context, op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    schema = context.config.attributes["schema"]
    op.create_table(
        "inbox",
        sa.Column(
            "stream",
            sa.SmallInteger(),
            autoincrement=False,
            nullable=False,
            comment="stream.id of the stream that takes records",
        ),
        sa.Column(
            "interval_id",
            sa.BigInteger(),
            nullable=False,
            comment="key_interval.id of its injector; without that row the stream takes none",
        ),
        sa.Column(
            "requires_id", sa.Boolean(), nullable=False, comment="refuses records without an id"
        ),
        sa.Column(
            "remember",
            sa.Interval(),
            nullable=False,
            comment="how long an id is remembered after its record",
        ),
        sa.ForeignKeyConstraint(["stream"], [f"{schema}.stream.id"]),
        sa.PrimaryKeyConstraint("stream"),
        comment="Streams that take records by send(), each with the options of its Inbox",
        schema=schema,
    )
    op.create_table(
        "sent_record",
        sa.Column("stream", sa.SmallInteger(), nullable=False, comment="stream.id"),
        sa.Column(
            "seq",
            sa.BigInteger(),
            sa.Identity(always=False),
            nullable=False,
            comment="order of sending",
        ),
        sa.Column("value", sa.Text(), nullable=False, comment="JSON"),
        sa.Column("ts", sa.BigInteger(), nullable=False, comment="event time; microseconds"),
        sa.PrimaryKeyConstraint("stream", "seq"),
        comment="Records sent by send() until the injector of their stream takes them",
        schema=schema,
    )
    op.create_table(
        "taken_record",
        sa.Column(
            "interval_id",
            sa.BigInteger(),
            nullable=False,
            comment="key_interval.id of the injector",
        ),
        sa.Column(
            "number", sa.BigInteger(), nullable=False, comment="place in the log of the injector"
        ),
        sa.Column("value", sa.Text(), nullable=False, comment="JSON"),
        sa.Column("ts", sa.BigInteger(), nullable=False, comment="event time; microseconds"),
        sa.PrimaryKeyConstraint("interval_id", "number"),
        comment="Records taken by an injector until all readers of their stream have acknowledged them",
        schema=schema,
    )
    op.create_table(
        "sent_id",
        sa.Column("stream", sa.SmallInteger(), nullable=False, comment="stream.id"),
        sa.Column(
            "id",
            sa.Text(collation="C"),
            nullable=False,
            comment="the sender's own id of the record",
        ),
        sa.Column("digest", sa.LargeBinary(), nullable=False, comment="of the record's value"),
        sa.Column(
            "sent_at",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="when its record was sent",
        ),
        sa.PrimaryKeyConstraint("stream", "id"),
        comment="Ids of records sent by send(): a repeat has no second effect",
        schema=schema,
    )
    op.create_index("sent_id_by_age", "sent_id", ["stream", "sent_at"], unique=False, schema=schema)


def downgrade() -> None:
    schema = context.config.attributes["schema"]
    for table in ("sent_id", "taken_record", "sent_record", "inbox"):
        op.drop_table(table, schema=schema)
