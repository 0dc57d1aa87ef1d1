"""Sees every step of a run, writes it into the ledger, and asks the checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from millwheel.core.model import MAX_TIME
from millwheel.errors import MillwheelError
from millwheel.graph.order import Graph
from millwheel.runtime.network.frames import Acknowledge
from millwheel.store.port.buckets import Bucket
from millwheel.store.port.claims import Claim
from millwheel.store.port.commit import Commit
from millwheel.testing.virtual_loop import VirtualLoop
from tests.sim import checks
from tests.sim.checks import Broken
from tests.sim.ledger import Ledger
from tests.sim.scenario import Scenario
from tests.sim.server import Database
from tests.sim.violation import Violation
from tests.sim.watch import Watch
from tests.support.random_graphs import Tape

LAST_EVENTS = 60


class Left(NamedTuple):
    """What is not acknowledged."""

    rows: int
    """Of sources."""
    productions: list[tuple[int, int]]
    """(log, number)."""


NOTHING_LEFT = Left(0, [])


class Monitor(Watch):
    """The bystander of one run."""

    def __init__(self, scenario: Scenario, loop: VirtualLoop) -> None:
        self.ledger = Ledger(scenario)
        self.trace: list[tuple[float, str, str]] = []
        """(virtual time, who, what)."""
        self.counts: dict[str, int] = {}
        self.steps = 0
        self.seconds = 0.0
        self.copy: tuple[float, Database] | None = None
        """The store as it was at a virtual time, if it was to be copied."""
        self.is_current: Callable[[str], bool] = lambda name: True
        """Whether a worker, by name, knows the server's present incarnation."""
        self._loop = loop
        self._names: dict[str, str] = {}
        self._database: Database | None = None

    def watch(self, database: Database, tapes: Sequence[Tape], graph: Graph) -> None:
        """What is to be looked at."""
        self._database = database
        self.ledger.watch(database.tables, tapes, graph)

    @property
    def database(self) -> Database:
        assert self._database is not None
        return self._database

    def is_finished(self) -> bool:
        """Whether all time is over, and nothing is on its way."""
        return self.ledger.is_finished()

    def left(self) -> Left:
        """What is not done of what the sources gave and what came of it: by what is stored."""
        tables, done = self.database.tables, 0
        sources = [id_ for id_, log in tables.logs.items() if log.source is not None]
        for id_ in sources:
            last, _ = tables.last_commit(tables.logs[id_].interval_id)
            done += msgspec.json.decode(last.link.acked).get(str(id_), (0, []))[0]
        given = sum(len(tape.steps) for tape in self.ledger.tapes)
        return Left(given - done, self.database.pending_productions())

    def joined(self, name: str, worker: str) -> None:
        self._names[worker] = name
        self.note(name, "joins")

    def lines(self, last: int = LAST_EVENTS) -> list[str]:
        """The last events, in virtual time."""
        return [f"{at:9.4f} {who:7} {what}" for at, who, what in self.trace[-last:]]

    # -- what happens -------------------------------------------------------------

    def count(self, what: str) -> None:
        """Something of a kind has happened."""
        self.counts[what] = self.counts.get(what, 0) + 1

    def note(self, who: str, what: str) -> None:
        self.trace.append((self._loop.time(), who, what))

    def _ask(self, check: Callable[..., None], *about: Any) -> None:
        try:
            check(self.ledger, *about)
        except Broken as broken:
            self.fail(Violation(check.__name__, str(broken)))

    def deployed(self) -> None:
        self.ledger.prepare()

    def committed(self, worker: str, commit: Commit, sent_at: float) -> None:
        self.note(self._name(worker), told(commit))
        self._ask(checks.nothing_comes_after_a_claim, commit, sent_at)
        for check in checks.ON_COMMIT:
            self._ask(check, commit)
        self.ledger.committed(commit)
        for standing in checks.STANDING:
            self._ask(standing)
        if self.ledger.commits == self.ledger.scenario.copy_after:
            self.note("store", "is copied")
            self.count("copy")
            self.copy = self._loop.time(), self.database.copied()

    def claimed(self, worker: str, raised: Mapping[int, int], new_logs: Mapping[int, int]) -> None:
        self.note(self._name(worker), f"claims {dict(raised)} new logs {dict(new_logs)}")
        self._ask(checks.sequencers_rise, raised)
        self.ledger.claimed(raised, new_logs)

    def took(self, worker: str, claims: list[Claim]) -> None:
        self.note(self._name(worker), f"reads {[claim.interval.id for claim in claims]}")
        self._ask(checks.a_successor_knows_all, claims)
        self.ledger.read(claims, self._loop.time())

    def released(self, worker: str, intervals: list[int]) -> None:
        self.note(self._name(worker), f"releases {intervals}")

    def split(self, interval: int, upper: int) -> None:
        rows = self.database.tables.intervals
        self.note("store", f"interval {interval} is split at {rows[interval].slot_to}: {upper}")
        sequencers = rows[interval].sequencer, rows[upper].sequencer
        self._ask(checks.a_cut_fences, [interval], sequencers)
        self.ledger.split(interval, upper, rows[interval].slot_to, sequencers)

    def merged(self, lower: int, upper: int, made: int) -> None:
        sequencer = self.database.tables.intervals[made].sequencer
        self.note("store", f"intervals {lower} and {upper} are merged: {made}")
        self._ask(checks.a_cut_fences, [lower, upper], [sequencer])
        self.ledger.merged(lower, upper, made, sequencer)

    def folded(self, interval: int, through: int) -> None:
        self.ledger.folded(interval, through)
        self._ask(checks.readers_see_what_was_committed, self.database.tables, interval)

    def retired(self, logs: list[int]) -> None:
        self._ask(checks.a_retired_log_is_done, logs)
        self.ledger.retired(logs)

    def dropped(self, bucket: Bucket) -> None:
        self.note("store", f"bucket {bucket.id} is dropped")
        self.count("bucket dropped")
        self._ask(checks.no_bucket_goes_too_early, bucket)

    def acknowledged(self, sender: str, frame: Acknowledge) -> None:
        if not self.is_current(sender):
            return  # it speaks of a past that the server has lost, to others that will forget it
        seqs = [seq for low, high in frame.seqs for seq in range(low, high + 1)]
        self.note(sender, f"acknowledges log {frame.log} {frame.seqs} for {frame.receiver}")
        self._ask(checks.told_is_durable, frame.log, frame.receiver, seqs)

    # -- what goes wrong ----------------------------------------------------------

    def broken(self, what: str, error: MillwheelError) -> None:
        self.fail(Violation("the store", f"{what}: {error}"))

    def worker_failed(self, name: str, error: BaseException) -> None:
        """A worker ended with an error that nothing here accounts for."""
        self.fail(Violation("no worker fails", f"{name}: {error!r}"))

    def fail(self, error: BaseException) -> None:
        """End the run."""
        self._loop.fail(error)
        raise error

    def _name(self, worker: str) -> str:
        return self._names.get(worker, worker[:8])


class Beginner(Monitor):
    """Who looks on from the middle: all that he can tell is what comes of it in the end."""

    def deployed(self) -> None:
        pass

    def committed(self, worker: str, commit: Commit, sent_at: float) -> None:
        self.note(self._name(worker), told(commit))

    def claimed(self, worker: str, raised: Mapping[int, int], new_logs: Mapping[int, int]) -> None:
        self.note(self._name(worker), f"claims {dict(raised)} new logs {dict(new_logs)}")

    def took(self, worker: str, claims: list[Claim]) -> None:
        self.note(self._name(worker), f"reads {[claim.interval.id for claim in claims]}")

    def split(self, interval: int, upper: int) -> None:
        self.note("store", f"interval {interval} is split: {upper}")

    def merged(self, lower: int, upper: int, made: int) -> None:
        self.note("store", f"intervals {lower} and {upper} are merged: {made}")

    def folded(self, interval: int, through: int) -> None:
        pass

    def retired(self, logs: list[int]) -> None:
        pass

    def dropped(self, bucket: Bucket) -> None:
        self.note("store", f"bucket {bucket.id} is dropped")

    def acknowledged(self, sender: str, frame: Acknowledge) -> None:
        pass

    def is_finished(self) -> bool:
        tables = self.database.tables
        return not self.database.pending_productions() and all(
            tables.last_commit(id_)[0].link.low_watermark == MAX_TIME for id_ in tables.intervals
        )


def told(commit: Commit) -> str:
    """A commit in a line."""
    links = " ".join(f"{link.interval_id}:{link.n}" for link in commit.intervals)
    parts = {
        "seen": sum(map(len, commit.seen.values())),
        "states": sum(len(run.slots) for run in commit.states),
        "timers": len(commit.timers),
        "sent": len(commit.productions),
        "late": len(commit.stragglers),
        "rows": len(commit.rows),
    }
    told = [f"{name} {n}" for name, n in parts.items() if n]
    return " ".join([f"commits {links}", *told, *_met(commit)])


def _met(commit: Commit) -> list[str]:
    """What code met and did, by the journals."""
    return [
        f"{table.name.replace('journal', 'n')} {values[1]} {values[3]}"
        for table, values in commit.rows
        if table.name.startswith("journal")
    ]
