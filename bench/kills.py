"""How long the keys of a killed worker stand still, and how often a live worker is taken for a dead
one.

A steady load covers keys in all slots of three workers. The first figure is the time from SIGKILL
to a worker until the last of its intervals has committed records again, by the stamps of the
commits. The second is the number of sessions of heartbeats, ended by an operator's hand, after
which another worker claimed an interval.
"""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path
from statistics import quantiles
from typing import Any

from bench.fleet import Fleet, fleet
from bench.shared import write_starts
from bench.takeover import LOAD, commits, owned

WORKERS = 3
SETTLE_SECONDS = 1.0
LATELY_SECONDS = 1.0
BEAT_SECONDS = 6.0
"""After so long each worker has sent a heartbeat, and holds its lock again."""

WORKER = "SELECT id::text FROM {} WHERE pid = %s"
LOCKED = (
    "SELECT count(*) FROM {} WHERE NOT stopped AND lease_until > now() AND locked_on IS NOT NULL"
)
END_HEARTBEATS = """
SELECT pg_terminate_backend(l.pid)
FROM {} AS w
CROSS JOIN LATERAL (SELECT hashtextextended(%s || ' ' || w.id, 2) AS number) AS h
JOIN pg_locks AS l ON l.locktype = 'advisory'
    AND l.classid::bigint = ((h.number >> 32) & 4294967295)
    AND l.objid::bigint = (h.number & 4294967295)
WHERE w.id = %s::uuid
"""
CLAIMS = "SELECT count(*) FROM {} WHERE what = 'claim' AND from_worker = %s::uuid AND at > %s"


def measure(url: str, directory: Path, *, kills: int, sessions: int) -> dict[str, Any]:
    """Kill workers, and end sessions of heartbeats."""
    write_starts(directory)
    draw = random.Random(1)
    with fleet(url, directory, "ticking", BENCH_RATE=str(LOAD)) as made:
        made.start(WORKERS)
        stood = []
        for number in range(kills):
            stood.append(_kill(made, draw.randrange(WORKERS)))
            print(f"  kill {number + 1}: {stood[-1]:.2f} s", flush=True)
            made.start(1)
            time.sleep(SETTLE_SECONDS)
        needless = sum(_end_session(made, draw.randrange(WORKERS)) for _ in range(sessions))
    cuts = quantiles(stood, n=20, method="inclusive")
    result = {
        "kills": kills,
        "p50_seconds": cuts[9],
        "p95_seconds": cuts[18],
        "max_seconds": max(stood),
        "sessions": sessions,
        "needless": needless,
    }
    print(
        f"SIGKILL to the first commit of the last interval: p50 {cuts[9]:.2f} s, p95 "
        f"{cuts[18]:.2f} s, at most {max(stood):.2f} s of {kills} kills"
    )
    print(f"{needless} needless takeovers after {sessions} ended sessions of heartbeats")
    return result


def _kill(made: Fleet, which: int) -> float:
    victim = made.processes.pop(which)
    ((worker,),) = made.ask(WORKER, "worker", victim.pid)
    lately = (time.time() - LATELY_SECONDS) * 1e6
    before = owned(made, worker)
    # A narrow interval of a computation with few keys may never get a record.
    busy = {c.interval for c in commits(made, list(before)) if c.stamp > lately}
    before = {id_: sequencer for id_, sequencer in before.items() if id_ in busy}
    killed = time.time()
    victim.send_signal(signal.SIGKILL)
    victim.wait()

    def first() -> dict[int, int]:
        new = [c for c in commits(made, list(before)) if c.sequencer > before[c.interval]]
        return {commit.interval: commit.stamp for commit in reversed(new)}

    def left() -> set[int]:
        """Intervals without records since; one that was split or merged since then was taken over
        before."""
        there = {id_ for (id_,) in made.ask("SELECT id FROM {}", "key_interval")}
        return (before.keys() & there) - first().keys()

    made.wait_until(lambda: not left(), "all intervals taken over")
    return max(first().values(), default=killed * 1e6) / 1e6 - killed


def _end_session(made: Fleet, which: int) -> bool:
    """End a worker's session of heartbeats; whether others claimed an interval of it."""
    ((worker,),) = made.ask(WORKER, "worker", made.processes[which].pid)
    made.wait_until(lambda: made.ask(LOCKED, "worker") == [(WORKERS,)], "all liveness locks taken")
    ((begin,),) = made.ask("SELECT clock_timestamp() FROM {} LIMIT 1", "pipeline")
    ended = made.ask(END_HEARTBEATS, "worker", made.name, worker)
    assert ended == [(True,)], ended
    time.sleep(BEAT_SECONDS)
    return made.ask(CLAIMS, "placement_event", worker, begin) != [(0,)]
