"""The engine's tables as they are when an anomaly is first seen: a while later its rows are folded
and dropped.

Each row has its ``xmin``, which tells which transaction has written it, and of a bucketed table the
bucket.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

BUCKETED = ("commit_record", "state_change", "seen_record", "seen_run", "production")
WHOLE = ("state", "fold", "key_interval", "bucket", "log", "worker", "placement_event")


def keep(connection: psycopg.Connection[Any], directory: Path) -> None:
    """Write each table into a CSV file of its name, all of one snapshot."""
    directory.mkdir(parents=True, exist_ok=True)
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        tables = sql.SQL(", ").join(map(sql.Identifier, (*BUCKETED, *WHOLE)))
        # A bucket that is dropped after the snapshot would be missing in it (I15).
        connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(tables))
        for table in (*BUCKETED, *WHOLE):
            query = sql.SQL("COPY (SELECT {}xmin, t.* FROM {} AS t) TO STDOUT (FORMAT csv, HEADER)")
            place = sql.SQL("tableoid::regclass AS place, " if table in BUCKETED else "")
            with (
                (directory / f"{table}.csv").open("wb") as file,
                connection.cursor().copy(query.format(place, sql.Identifier(table))) as copy,
            ):
                for part in copy:
                    file.write(part)
