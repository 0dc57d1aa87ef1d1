"""Views for people: committed data, decoded, at one snapshot, with a comment on every column.

They add the unfolded tail to the current tables (I15).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg import sql

from millwheel.errors import StoreError
from millwheel.store.postgres.statements import TABLES, composed, text_of

FUNCTIONS = ("functions", "slot_of", "send", "bucket_functions")
"""Files of functions, which are replaced in place: that keeps grants."""

KEY_FUNCTIONS = "key_functions"
"""The file with functions that read views."""

NAMES = (
    "micros_to_time", "record_id", "send", "send_all", "count_waiting", "slot_of", "slot_of_text",
    "key_text",
    "xxh3_word", "xxh3_number", "xxh3_low", "xxh3_shift", "xxh3_fold", "xxh3_mix", "xxh3_spread",
    "sought_key", "state_of", "timers_of", "pending_of", "find_holders", "forget_requests",
    "make_bucket", "drop_bucket",
)  # fmt: skip

VIEWS = (
    "latest_commits",
    "state_changes",
    "states",
    "timers",
    "pending_productions",
    "watermarks",
    "watermark_holders",
    "workers",
    "worker_ends",
    "placement_events",
    "dead_letters",
    "parked_keys",
    "source_partitions",
    "sinks",
    "numbered_rows",
    "aggregates",
    "spark_queries",
    "disk_use",
    "oldest_bucket",
    "old_snapshots",
    "fold_lag",
)


def refuse_lookalikes(connection: psycopg.Connection[Any], schema: str) -> None:
    """`StoreError` if another role has made functions that a call of the owner might run in place
    of the owner's."""
    params = {"schema": schema, "names": list(NAMES)}
    found = connection.execute(text_of("lookalikes"), params).fetchone()
    if found is not None:
        raise StoreError(
            f"the role {found[1]} has made the function {found[0]}, which is named like one of the "
            "pipeline and would run in its place with the rights of this login. Nothing was "
            "changed. Look at it, and drop it"
        )


def install_views(connection: psycopg.Connection[Any], schema: str) -> None:
    refuse_lookalikes(connection, schema)
    for view in reversed(VIEWS):
        connection.execute(composed("drop_view", view=sql.Identifier(schema, view)))
    for statement in view_statements(schema):
        connection.execute(statement)


def view_statements(schema: str) -> Iterator[str]:
    """Texts that make the functions and views of a schema without views, some of several
    statements."""
    for name in (*FUNCTIONS, *VIEWS, KEY_FUNCTIONS):
        yield composed(f"views/{name}", **_names(schema))


def install_functions(connection: psycopg.Connection[Any], schema: str) -> None:
    """Replace the functions of a schema that has got another name, which stands in their texts;
    views follow their tables."""
    refuse_lookalikes(connection, schema)
    for name in (*FUNCTIONS, KEY_FUNCTIONS):
        connection.execute(composed(f"views/{name}", **_names(schema)))


def _names(schema: str) -> dict[str, sql.Composable]:
    relations = (*TABLES, *VIEWS, *NAMES)
    found: dict[str, sql.Composable] = {name: sql.Identifier(schema, name) for name in relations}
    found["schema_name"] = sql.Literal(schema)
    return found
