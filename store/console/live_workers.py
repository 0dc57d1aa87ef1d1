"""The workers of a pipeline that run."""

from __future__ import annotations

from typing import Any

import psycopg

from millwheel.store.postgres.processes import is_dead
from millwheel.store.postgres.statements import Statements


def live_workers(
    connection: psycopg.Connection[Any], statements: Statements
) -> list[tuple[str, int, float]]:
    """Host, process id and remaining seconds of the lease."""
    return [
        (host.split()[0], pid, lease_left)
        for _, host, pid, pid_started, _, lease_left in connection.execute(
            statements.get("other_workers")
        )
        if lease_left > 0 and not is_dead(host, pid, pid_started)
    ]
