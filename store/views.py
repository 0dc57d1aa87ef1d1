"""Views for people: committed data, decoded, at one snapshot, with a comment on every column.

They add the unfolded tail to the current tables (I15), so a SELECT does not depend on the time of the last fold.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

from millwheel.store.schema import metadata
from millwheel.store.statements import composed

VIEWS = (
    "functions",
    "latest_commits",
    "states",
    "timers",
    "pending_productions",
    "watermarks",
    "watermark_holders",
    "workers",
    "placement_events",
    "dead_letters",
)


def install_views(connection: psycopg.Connection[Any], schema: str) -> None:
    """Create or replace all views of a pipeline's schema."""
    names = {name: sql.Identifier(schema, name) for name in (*metadata.tables, *VIEWS)}
    names["micros_to_time"] = sql.Identifier(schema, "micros_to_time")
    names["record_id"] = sql.Identifier(schema, "record_id")
    for view in reversed(VIEWS[1:]):
        connection.execute(composed("drop_view", view=names[view]))
    for view in VIEWS:
        connection.execute(composed(f"views/{view}", **names))
