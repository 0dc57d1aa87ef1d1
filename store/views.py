"""Views for people: committed data, decoded, at one snapshot, with a comment on every column.

They add the unfolded tail to the current tables (I15), so a SELECT does not depend on the time of the last fold.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

from millwheel.store.schema import metadata
from millwheel.store.statements import composed

FUNCTIONS = ("functions", "send")
"""Files in ``sql/views`` that make functions; they are replaced in place, which keeps grants."""

VIEWS = (
    "latest_commits",
    "states",
    "timers",
    "pending_productions",
    "watermarks",
    "watermark_holders",
    "workers",
    "placement_events",
    "dead_letters",
    "source_partitions",
    "sinks",
    "numbered_rows",
    "aggregates",
    "spark_queries",
)


def install_views(connection: psycopg.Connection[Any], schema: str) -> None:
    """Create or replace all functions and views of a pipeline's schema."""
    names = {name: sql.Identifier(schema, name) for name in (*metadata.tables, *VIEWS)}
    for function in ("micros_to_time", "record_id", "send", "send_all", "count_waiting"):
        names[function] = sql.Identifier(schema, function)
    for view in reversed(VIEWS):
        connection.execute(composed("drop_view", view=names[view]))
    for name in (*FUNCTIONS, *VIEWS):
        connection.execute(composed(f"views/{name}", **names))
