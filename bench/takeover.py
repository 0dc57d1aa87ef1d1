"""Pauses of an interval: when its worker is killed, when it is moved, when it is split.

A steady load covers keys in all slots. The result is the longest pause between two commits with
records of the intervals concerned, by the stamps of these commits. For a takeover it is the time
from the end of the dead worker's lease, which its peers end, to the first such commit.

The longest of many pauses is long by chance. The effect of a move on other intervals is therefore
reported with their longest pause in a period of the same length just before, in which the same
command requests the current placement: it costs the same and moves nothing.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from bench.fleet import Fleet, fleet
from bench.shared import write_starts
from millwheel.core.codec import encode_key

LOAD = 200.0
LEASE_SECONDS = 3.0
STATE_BYTES = 1000
STRETCH_SECONDS = 4.0
"""Length of a measured period, including the command, which takes one or two seconds; the period is
extended if the command takes longer."""

COMMITS = """
SELECT interval_id, sequencer, stamp, (counters ->> 'processed')::bigint
FROM {} WHERE interval_id = ANY(%s) ORDER BY interval_id, n
"""
OWNED = """
SELECT id, sequencer FROM {} WHERE owner = %s::uuid AND slot_to - slot_from > 100 ORDER BY id
"""
LEASE = """
SELECT (extract(epoch FROM lease_until) * 1000000)::bigint FROM {} WHERE id = %s::uuid
"""


def fill(made: Fleet, keys: int) -> None:
    """Write a state of a thousand bytes for each of N keys."""
    ((computation,),) = made.ask("SELECT id FROM {} WHERE name = 'measure'", "computation")
    ((interval,),) = made.ask(
        "SELECT min(id) FROM {} WHERE computation = %s", "key_interval", computation
    )
    value = '{"last": 0, "text": "' + "x" * STATE_BYTES + '"}'
    with psycopg.connect(made.url, autocommit=True) as connection:
        columns = connection.execute(
            "SELECT column_name FROM information_schema.columns "
            "WHERE table_schema = %s AND table_name = 'state'",
            [made.name],
        ).fetchall()
        given = {"computation": computation, "entry": "", "value": value, "version": 1, "n": 0}
        given["interval_id"] = interval
        names = [name for (name,) in columns if name in {*given, "slot", "key"}]
        table = sql.Identifier(made.name, "state")
        listed = sql.SQL(", ").join(map(sql.Identifier, names))
        connection.execute(sql.SQL("CREATE TEMP TABLE filling AS TABLE {} LIMIT 0").format(table))
        copy = sql.SQL("COPY filling ({}) FROM STDIN").format(listed)
        with connection.cursor() as cursor, cursor.copy(copy) as rows:
            for number in range(keys):
                text, slot = encode_key(f"key {number}")
                row = {**given, "slot": slot, "key": text.decode()}
                rows.write_row([row[name] for name in names])
        connection.execute(  # states that the load has already created stay
            sql.SQL("INSERT INTO {} ({}) SELECT {} FROM filling ON CONFLICT DO NOTHING").format(
                table, listed, listed
            )
        )
        connection.execute(sql.SQL("ANALYZE {}").format(table))


class WithRecords(NamedTuple):
    """A commit that processed records."""

    interval: int
    sequencer: int
    stamp: int


def commits(made: Fleet, intervals: list[int]) -> list[WithRecords]:
    """Return the commits of some intervals that processed records, in order per interval."""
    found = []
    totals: dict[int, int] = {}
    for id_, sequencer, stamp, total in made.ask(COMMITS, "commit_record", intervals):
        if (total or 0) > totals.get(id_, 0):
            found.append(WithRecords(id_, sequencer, stamp))
        totals[id_] = total or 0
    return found


def owned(made: Fleet, worker: str) -> dict[int, int]:
    """Return the sequencers of a worker's intervals that receive records, by id."""
    return dict(made.ask(OWNED, "key_interval", worker))


class Stretch(NamedTuple):
    """A period of time, in microseconds."""

    begin: float
    end: float

    def longest_pause(self, made: Fleet, intervals: Iterable[int]) -> float:
        """Return the longest time between two commits with records of one of the intervals, in
        seconds."""
        inside = [c for c in commits(made, list(intervals)) if self.begin < c.stamp <= self.end]
        pauses = [
            next_.stamp - one.stamp
            for one, next_ in pairwise(inside)
            if one.interval == next_.interval
        ]
        return max(pauses, default=0) / 1e6


def stretch(made: Fleet, *words: str) -> Stretch:
    """Run a ``millwheel intervals`` command; return the period in which it was carried out."""
    begin = time.time()
    subprocess.run(
        [sys.executable, "-m", "millwheel.cli.main", "intervals", *words, "--store", made.url,
         "--pipeline", made.name],
        check=True, capture_output=True,
    )  # fmt: skip
    time.sleep(max(0.0, begin + STRETCH_SECONDS - time.time()))
    return Stretch(begin * 1e6, time.time() * 1e6)


def takeovers(url: str, directory: Path, keys: int, kills: int) -> list[float]:
    """Kill workers repeatedly; measure the seconds from the end of the lease until all of a killed
    worker's intervals have committed records again."""
    with fleet(
        url, directory, "ticking", BENCH_RATE=str(LOAD), BENCH_LEASE=str(LEASE_SECONDS),
        BENCH_KEYS=str(keys),
    ) as made:  # fmt: skip
        made.start(1)
        made.end()  # now the pipeline is deployed
        fill(made, keys)
        made.start(1)
        found = []
        for _ in range(kills):
            made.start(1)
            time.sleep(3)
            found.append(takeover(made))
        return found


def takeover(made: Fleet) -> float:
    """Measure the takeover of the oldest worker."""
    victim = made.processes.pop(0)
    ((worker,),) = made.ask("SELECT id::text FROM {} WHERE pid = %s", "worker", victim.pid)
    before = owned(made, worker)

    def after() -> dict[int, int]:
        new = [c for c in commits(made, list(before)) if c.sequencer > before[c.interval]]
        return {commit.interval: commit.stamp for commit in reversed(new)}

    victim.send_signal(signal.SIGKILL)
    victim.wait()
    made.wait_until(lambda: after().keys() == before.keys(), "all intervals taken over")
    ((lease,),) = made.ask(LEASE, "worker", worker)
    return float(max(after().values()) - lease) / 1e6


def move(url: str, directory: Path, moves: int) -> dict[str, list[float]]:
    """Measure pauses, in seconds.

    They are the pauses of moved intervals, of other intervals during a move and without a move, and
    of an interval that is split.
    """
    found: dict[str, list[float]] = {"moved": [], "others": [], "no move": [], "split": []}
    with fleet(url, directory, "ticking", BENCH_RATE=str(LOAD)) as made:
        made.start(2)
        time.sleep(2)
        workers = [id_ for (id_,) in made.ask("SELECT id::text FROM {}", "worker")]
        for number in range(moves):
            giver, taker = workers[number % 2], workers[(number + 1) % 2]
            mine = owned(made, giver)
            id_ = min(mine)
            others = {*mine, *owned(made, taker)} - {id_}
            calm = stretch(made, "move", str(id_), giver)
            found["no move"].append(calm.longest_pause(made, others))
            moved = stretch(made, "move", str(id_), taker)
            found["moved"].append(moved.longest_pause(made, [id_]))
            found["others"].append(moved.longest_pause(made, others))
        id_ = min({**owned(made, workers[0]), **owned(made, workers[1])})
        found["split"].append(stretch(made, "split", str(id_)).longest_pause(made, [id_]))
    return found


def measure(
    url: str, directory: Path, *, sizes: tuple[int, ...], kills: int, moves: int
) -> dict[str, Any]:
    """Measure takeovers at several state sizes (medians of `kills` each), and moves under load."""
    write_starts(directory)
    found: dict[str, Any] = {"takeover": {}}
    for size in sizes:
        each = takeovers(url, directory, size * 1_000_000 // STATE_BYTES, kills)
        found["takeover"][size] = seconds = median(each)
        print(
            f"  {size:5,} MB of state: {seconds:.2f} s from the end of the lease to records "
            f"({min(each):.2f}-{max(each):.2f}, {kills} kills)"
        )
    ratio = found["takeover"][sizes[-1]] / found["takeover"][sizes[0]]
    found["ratio"] = ratio
    print(f"takeover at {sizes[-1]:,} MB / at {sizes[0]:,} MB = {ratio:.2f}")
    found["move"] = move(url, directory, moves)
    for what, seconds_ in found["move"].items():
        print(
            f"  {what}: longest pause {max(seconds_) * 1000:.0f} ms, median "
            f"{median(seconds_) * 1000:.0f} ms of {len(seconds_)}"
        )
    return found
