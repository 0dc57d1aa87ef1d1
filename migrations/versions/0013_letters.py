"""Holds of parked keys (decision 60), and the end of rows that were kept for ever.

Revision: 0013
"""

import json

import sqlalchemy as sa
from alembic import context, op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


CHECKS = {
    "request_slot": "slot BETWEEN 0 AND 65535",
    "request_key": "jsonb_typeof(key::jsonb) IN ('string', 'number', 'array')",
}
"""Constraints that refuse a wrong request when an operator inserts it by hand; the owner of its key
checks the rest."""


def upgrade() -> None:
    """Add where a waiting record holds the low watermark. Its owner holds it by the record alone:
    the timers by which former code did so go. So do drained logs: a log is deleted from now on when
    it is drained."""
    schema = context.config.attributes["schema"]
    delete_wrong_requests(schema)
    release_letters_of_removed_computations(schema)
    logs = sa.table("log", sa.column("retired"), sa.column("source"), schema=schema)
    op.execute(sa.delete(logs).where(logs.c.retired, logs.c.source.is_(None)))
    for table in ("timer", "timer_change"):
        timers = sa.table(table, sa.column("kind"), sa.column("tag"), schema=schema)
        op.execute(
            sa.delete(timers).where(
                timers.c.kind == "watermark", timers.c.tag == "millwheel:parked"
            )
        )
    op.add_column(
        "dead_letter",
        sa.Column(
            "hold",
            sa.BigInteger(),
            comment=(
                "in a parked key: where it holds the low watermark, if its computation says so; "
                "microseconds"
            ),
        ),
        schema=schema,
    )
    for name, condition in CHECKS.items():
        op.create_check_constraint(name, "request", sa.text(condition), schema=schema)


def delete_wrong_requests(schema: str) -> None:
    """Delete requests that are for no key: they ended the workers that read them."""
    requests = sa.table(
        "request", sa.column("id"), sa.column("slot"), sa.column("key"), schema=schema
    )
    rows = op.get_bind().execute(sa.select(requests).where(requests.c.key.is_not(None)))
    wrong = [id_ for id_, slot, key in rows if not (_is_key(key) and 0 <= (slot or 0) < 65536)]
    op.execute(sa.delete(requests).where(requests.c.id.in_(wrong)))


def _is_key(text: str) -> bool:
    try:
        key = json.loads(text)
    except ValueError:
        return False
    return type(key) in (str, int, list) and "\\u0000" not in text


def release_letters_of_removed_computations(schema: str) -> None:
    """Make them plain dead letters, as a removal does from now on: they can be discarded."""
    letters = sa.table(
        "dead_letter",
        sa.column("computation"),
        sa.column("parked"),
        sa.column("watermark"),
        schema=schema,
    )
    computations = sa.table("computation", sa.column("id"), sa.column("removed_at"), schema=schema)
    removed = sa.select(computations.c.id).where(computations.c.removed_at.is_not(None))
    op.execute(
        sa.update(letters)
        .where(letters.c.parked.is_not(None), letters.c.computation.in_(removed))
        .values(parked=None, watermark=None)
    )


def downgrade() -> None:
    """Forget the holds: workers of former code hold the low watermark from a key's next turn on."""
    schema = context.config.attributes["schema"]
    for name in CHECKS:
        op.drop_constraint(name, "request", schema=schema)
    op.drop_column("dead_letter", "hold", schema=schema)
