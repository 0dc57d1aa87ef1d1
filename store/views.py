"""Views for people: committed data, decoded, at one snapshot, with a comment on every column.

They add the unfolded tail to the current tables (I15), so a SELECT does not depend on the time of the last fold.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

from millwheel.store.schema import metadata
from millwheel.store.statements import composed

FUNCTIONS = ("functions", "slot_of", "send")
"""Files in ``sql/views`` that make functions; they are replaced in place, which keeps grants."""

KEY_FUNCTIONS = "key_functions"
"""The file with functions that read views."""

NAMES = (
    "micros_to_time", "record_id", "send", "send_all", "count_waiting", "slot_of", "slot_of_text", "key_text",
    "xxh3_word", "xxh3_number", "xxh3_low", "xxh3_shift", "xxh3_fold", "xxh3_mix", "xxh3_spread",
    "sought_key", "state_of", "timers_of", "pending_of",
)  # fmt: skip
"""The names of all functions in these files."""

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
    "parked_keys",
    "source_partitions",
    "sinks",
    "numbered_rows",
    "aggregates",
    "spark_queries",
    "disk_use",
    "oldest_bucket",
    "fold_lag",
)


def install_views(connection: psycopg.Connection[Any], schema: str) -> None:
    """Create or replace all functions and views of a pipeline's schema."""
    names = {name: sql.Identifier(schema, name) for name in (*metadata.tables, *VIEWS)}
    for function in NAMES:
        names[function] = sql.Identifier(schema, function)
    for view in reversed(VIEWS):
        connection.execute(composed("drop_view", view=names[view]))
    for name in (*FUNCTIONS, *VIEWS, KEY_FUNCTIONS):
        connection.execute(composed(f"views/{name}", **names))
