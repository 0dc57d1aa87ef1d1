"""What is kept of a run in which nothing moves any more."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
from pathlib import Path

import psycopg

from tests.campaign.crew import Crew
from tests.campaign.looker import connect

SECONDS = 100.0
"""How long nothing may be committed: longer than a link takes that is heard and does not hear
(`millwheel.runtime.network.peer_ports.Limits.deaf_seconds`)."""

WRITE_SECONDS = 2.0
TAIL_BYTES = 20_000

QUESTIONS = (
    (
        "SELECT interval_id, computation, slot_from, slot_to, owner, n, position, acked FROM "
        "latest_commits"
    ),
    "SELECT id, computation, owner, wanted_by, sequencer, split_at, merge_with FROM key_interval",
    "SELECT id, pid, heartbeat_at, lease_until, stopped, address, lease_until > now() FROM worker",
    "SELECT receiver, log, count(*), min(seq), max(seq) FROM pending_productions GROUP BY 1, 2",
    "SELECT id, family, log, low, high FROM bucket",
    (
        "SELECT at, interval_id, what, from_worker, to_worker, reason FROM placement_event "
        "ORDER BY id DESC LIMIT 60"
    ),
    (
        "SELECT pid, state, wait_event_type, wait_event, xact_start, query_start, backend_type, "
        "left(query, 300) FROM pg_stat_activity"
    ),
    "SELECT locktype, relation::regclass, pid, mode, granted FROM pg_locks WHERE NOT granted",
)


async def diagnose(crew: Crew, directory: Path) -> Path:
    """Ask everybody how he is; the answers stand in a directory."""
    directory.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 (nothing else is to be done)
    for hand in crew.alive:
        hand.send(signal.SIGCONT)
        hand.send(signal.SIGUSR1)  # the stacks of its threads, to the log
    await asyncio.sleep(WRITE_SECONDS)
    await asyncio.to_thread(_ask, crew.site.url, directory / "store.txt")
    lines = [
        f"worker {hand.number} {hand.id} pid {hand.pid} busy {hand.busy} armed "
        f"{hand.control.armed!r}"
        for hand in crew.alive
    ]
    (directory / "workers.txt").write_text("\n".join(lines) + "\n")
    with contextlib.suppress(OSError):
        shutil.copy(crew.log, directory / "workers.log")
        log = crew.site.log()
        if log is not None:
            (directory / "postgres.log").write_bytes(log.read_bytes()[-TAIL_BYTES:])
    return directory


def _ask(url: str, path: Path) -> None:
    with path.open("w") as file:
        for question in QUESTIONS:
            file.write(f"\n-- {question}\n")
            try:
                with connect(url) as connection:
                    for row in connection.execute(question.encode()):
                        file.write(" | ".join(map(str, row)) + "\n")
            except psycopg.Error as error:
                file.write(f"{error}\n")
