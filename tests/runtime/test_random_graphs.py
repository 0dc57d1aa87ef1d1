"""What holds for every pipeline: random graphs, arrival orders, copies, limits and crashes.

Each property runs plans of `random_graphs` and looks at nothing but the commits as they become
durable and at the tables in the end; what must be in them is worked out here, by other means
than the engine's. Each takes `EXAMPLES` plans or fewer, and many more with `make soak`. A failure
prints the plan, which can be run again: ``check_watermarks(Plan(...))``.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings

from millwheel.core.model import MAX_TIME, MIN_TIME, record_id, to_micros
from millwheel.store.port.commit import Commit
from millwheel.store.port.states import TimerChange
from tests.support import random_graphs
from tests.support.random_graphs import (
    ALL_KEPT,
    ALL_LATENESS,
    EXACT,
    SIMPLE,
    WINDOWS,
    Dot,
    Drawn,
    Event,
    Plan,
    Stage,
    either,
    phased,
    plans,
)
from tests.support.values import at

EXAMPLES = 25
FEWER_EXAMPLES = 15
"""Of what tests/runtime/test_exactly_once.py has examples of as well."""
SOAK_EXAMPLES = 5_000
REDUCE_SECONDS = 20.0
"""How long a failing plan is made smaller at the most."""


def checked(make: Drawn, check: Callable[[Plan], None], examples: int) -> Callable[[], None]:
    """A test of `check` over so many plans."""
    known: dict[Plan, Plan] = {}

    def once(plan: Plan) -> None:
        if plan not in known:
            try:
                check(plan)
            except Exception:
                known[plan] = reduced(plan, check)
            else:
                return
        smallest = known[plan]
        note(smallest.describe())
        note(f"{check.__name__}({smallest!r})")
        check(smallest)
        raise AssertionError("it failed at first, and holds when it is run again")

    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=examples <= EXAMPLES,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )(given(random_graphs.drawn(make))(once))


def reduced(plan: Plan, check: Callable[[Plan], None]) -> Plan:
    """The smallest plan that fails, as far as there is time to look for it."""
    end = time.monotonic() + REDUCE_SECONDS
    while True:
        for less in random_graphs.smaller(plan):
            if time.monotonic() > end:
                return plan
            try:
                check(less)
            except Exception:
                plan = less
                break
        else:
            return plan


# -- watermarks -------------------------------------------------------------------------------


class Books:
    """What is pending and what was promised, by the commits alone."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.low: dict[int, int] = {}
        self.input: dict[int, int] = {}
        self.productions: dict[tuple[int, bytes], tuple[int, int, int, int]] = {}
        """(receiver, id) -> (sending interval, hold, log, number): durable, not processed yet."""
        self.acked: dict[int, tuple[int, list[tuple[int, int]]]] = {}
        """Log -> first number not acknowledged, and runs beyond it."""
        self.timers: dict[tuple[int, bytes, str, str], tuple[int, int]] = {}
        """Timers and holds of user code -> (interval, hold)."""
        self.seen: set[tuple[int, bytes]] = set()
        self.events = 0
        self.ready = False

    def _prepare(self, stage: Stage) -> None:
        """Who sends to whom, by the plan; the store gives the ids of names."""
        self.ready = True
        plan, store = self.plan, stage.world.store
        self.ids = {name: known.id for name, known in store.tables.computations.items()}
        of: dict[int, list[int]] = defaultdict(list)
        for row in sorted(store.tables.intervals.values(), key=lambda row: row.slot_from):
            of[row.computation].append(row.id)
            self.low[row.id] = self.input[row.id] = MIN_TIME
        self.of = of
        self.computation = {id_: c for c, intervals in of.items() for id_ in intervals}
        sources = len(plan.sources)

        def writer(stream: int) -> list[int]:
            name = f"i{stream}" if stream < sources else f"n{stream - sources}"
            return of[self.ids[name]]

        self.senders: dict[int, list[int]] = {}
        self.readers: list[list[int]] = [[] for _ in range(sources)]
        for number, node in enumerate(plan.nodes):
            reader = self.ids[f"n{number}"]
            if node.kind in WINDOWS:
                self.senders[reader] = of[self.ids[f"w{number}"]]
                reader = self.ids[f"w{number}"]
            self.senders[reader] = [id_ for stream in node.reads for id_ in writer(stream)]
            for stream in node.reads:
                if stream < sources:
                    self.readers[stream].append(reader)
        self.partitions: list[tuple[int, int]] = []
        """(interval, log) of each partition."""
        for number in range(sources):
            for id_ in of[self.ids[f"i{number}"]]:
                (log,) = [
                    log for log, found in store.tables.logs.items() if found.interval_id == id_
                ]
                self.partitions.append((id_, log))
        for tape, (id_, _) in zip(stage.tapes, self.partitions, strict=True):
            tape.promised = lambda id_=id_: stage.promised.get(id_, MIN_TIME)  # type: ignore[misc]

    def check(self, stage: Stage, commit: Commit) -> None:
        """What a commit changes, and whether it may stand in the store like that."""
        if not self.ready:
            self._prepare(stage)
        before = dict(self.low)
        self._links(commit, before)
        self._records(stage, commit, before)
        self._times(commit, before)
        self._journals(commit, before)
        self._pending()
        self._rows(stage)

    def _told(self, computation: int, low: dict[int, int]) -> int:
        """The input watermark of a computation, by what its senders have stored."""
        return min(low[sender] for sender in self.senders[computation])

    def _links(self, commit: Commit, before: dict[int, int]) -> None:
        for link in commit.intervals:
            id_ = link.interval_id
            assert link.low_watermark >= before[id_], "a low watermark went back"
            assert link.low_watermark <= link.input_watermark, "output ahead of input"
            computation = self.computation[id_]
            if computation in self.senders:  # an injector's input is how far it has read again
                assert link.input_watermark >= self.input[id_], "an input watermark went back"
                told = self._told(computation, before)
                assert link.input_watermark <= told, "ahead of what its senders have stored"
            self.low[id_], self.input[id_] = link.low_watermark, link.input_watermark
            for log, (first, runs) in msgspec.json.decode(link.acked).items():
                self.acked[int(log)] = first, runs

    def _records(self, stage: Stage, commit: Commit, before: dict[int, int]) -> None:
        for rows in commit.seen.values():
            for receiver, id_ in rows:
                assert (receiver, id_) not in self.seen, "processed twice"
                self.seen.add((receiver, id_))
                self.productions.pop((receiver, id_), None)
        logs = stage.world.store.tables.logs
        for production in commit.productions:
            sender = logs[production.log].interval_id
            hold = max(production.micros, before[sender])
            assert production.hold == hold, "a hold is not what was promised"
            name = production.receiver, production.id
            assert name not in self.seen, "processed before it was durable"
            self.productions[name] = sender, hold, production.log, production.seq

    def _times(self, commit: Commit, before: dict[int, int]) -> None:
        for change in map(TimerChange._make, commit.timers):
            name = (change.computation, change.key, change.kind, change.tag)
            self.timers.pop(name, None)
            if change.due is not None:
                hold = max(change.due, before[change.interval_id])
                assert change.hold == hold, "a timer's hold is not what was promised"
                self.timers[name] = change.interval_id, hold

    def _journals(self, commit: Commit, before: dict[int, int]) -> None:
        """What user code saw of time: stored before, and never a record late without cause."""
        for table, values in commit.rows:
            if not table.name.startswith("journal"):
                continue
            event = Event(*values)
            computation = self.ids[f"n{table.name.removeprefix('journal')}"]
            self.events += 1
            told = self._told(computation, before)
            assert event.watermark <= told, "user code was told what was not stored"
            if event.what == "rang":
                assert event.moment < event.watermark, "a timer rang before its time"
            elif event.on_time:
                assert event.moment >= event.watermark, f"late without cause: {event}"

    def _pending(self) -> None:
        low = self.low
        for sender, hold, log, seq in self.productions.values():
            assert low[sender] <= hold, "ahead of a production nobody has processed"
            assert not self._is_acknowledged(log, seq), "acknowledged before it was processed"
        busy = {sender for sender, *_ in self.productions.values()}
        busy |= {id_ for (_, _, kind, _), (id_, _) in self.timers.items() if kind == "watermark"}
        for (_, _, kind, _), (id_, hold) in self.timers.items():
            if kind == "hold" and self.input[id_] == MAX_TIME and id_ not in busy:
                continue  # at the end of time, when nothing is left to release them
            assert low[id_] <= hold, f"ahead of a pending timer or hold ({kind})"

    def _is_acknowledged(self, log: int, seq: int) -> bool:
        first, runs = self.acked.get(log, (0, []))
        return seq < first or any(low <= seq <= high for low, high in runs)

    def _rows(self, stage: Stage) -> None:
        """Rows of sources that are not processed by all readers, read or not; and no source is
        ahead of its own word."""
        for partition, (id_, log) in enumerate(self.partitions):
            owner = stage.owners[partition]
            source = self.plan.sources[owner]
            low = self.low[id_]
            if low == MIN_TIME:
                continue
            tape = stage.tapes[partition]
            promised = MIN_TIME
            for offset, step in enumerate(tape.steps):
                if step.watermark is not None:
                    promised = max(promised, step.watermark)
                    continue
                assert isinstance(step.value, Dot)
                micros = to_micros(at(step.value.second))
                read = offset < len(tape.read_once)
                if any((r, record_id(log, offset)) not in self.seen for r in self.readers[owner]):
                    assert not self._is_acknowledged(log, offset), "acknowledged too early"
                    if not source.idle:
                        assert low <= max(micros, promised), "ahead of a row nobody processed"
                    elif read:
                        word = max(micros, promised, tape.read_once[offset])
                        assert low <= word, "ahead of a row of an idle source"
                promised = max(promised, micros - source.lateness * 1_000_000)
            if not source.idle and not stage.closing:
                assert low <= promised, "a source is ahead of its own word"


def check_watermarks(plan: Plan) -> None:
    """I5, I7: at every commit, with all that is stored by then."""
    books = Books(plan)
    stage = random_graphs.run(plan, books.check)
    assert books.productions == {}
    assert books.timers == {}
    assert set(books.low.values()) == {MAX_TIME}
    assert stage.world.store.pending_productions() == []


# -- windows ------------------------------------------------------------------------------------


def check_windows(plan: Plan) -> None:
    """The final panes are what a batch says of the records that came in time."""
    stage = random_graphs.run(plan)
    given = random_graphs.by_hand(plan, random_graphs.values(plan))
    for number, node in enumerate(plan.nodes):
        if node.kind in WINDOWS:
            panes = stage.panes(number)
            found = random_graphs.remaining(panes)
            if not plan.punctual and not random_graphs.knows(plan, number):
                continue
            dots = [dot for stream in node.reads for dot in given[stream]]
            assert found == random_graphs.batch(node, dots), f"node {number}"
            if plan.punctual:
                assert len(panes) == len(found), "one pane each"


def check_allowed_lateness(plan: Plan) -> None:
    """Beyond what is allowed a record is in no pane, up to it in each of its windows."""
    stage = random_graphs.run(plan)
    phases = random_graphs.phases(plan)
    for number, node in enumerate(plan.nodes):
        if node.kind in WINDOWS:
            come = [
                (watermark, [dot for stream in node.reads for dot in streams[stream]])
                for watermark, streams in phases
            ]
            found = random_graphs.remaining(stage.panes(number))
            assert found == random_graphs.in_time(node, come), f"node {number}"
    nothing_left(stage)


def nothing_left(stage: Stage) -> None:
    store = stage.world.store
    assert store.pending_productions() == []
    assert store.dead_letters == []
    assert store.timers() == []


# -- timers ---------------------------------------------------------------------------------------


def check_timers(plan: Plan) -> None:
    """I6: per key in the order of time, across tags; each once, if it was not taken back."""
    stage = random_graphs.run(plan)
    for number in range(len(plan.nodes)):
        pending: dict[str, dict[str, int]] = defaultdict(dict)
        counts: Counter[str] = Counter()
        for event in stage.journal(number):
            due = pending[event.key]
            counts[event.key] += 1
            if event.count:
                assert event.count == counts[event.key], "an event twice, or one is missing"
            if event.what == "set":
                due[event.name] = event.moment
            elif event.what == "cancel":
                due.pop(event.name, None)
            elif event.what == "rang":
                assert due.pop(event.name, None) == event.moment, f"not set like that: {event}"
                assert min(due.values(), default=MAX_TIME) >= event.moment, f"too soon: {event}"
        assert {key: left for key, left in pending.items() if left} == {}, "never rang"
    nothing_left(stage)


# -- effects ---------------------------------------------------------------------------------------


class Origins:
    """Where each value stood in its sender's log, by the commits."""

    def __init__(self) -> None:
        self.of: dict[tuple[int, str, str], tuple[int, int]] = {}
        """(receiver, stream, name) -> (log, number)."""

    def note(self, stage: Stage, commit: Commit) -> None:
        for production in commit.productions:
            if isinstance(production.value, Dot):
                name = production.receiver, production.stream, production.value.name
                assert name not in self.of, "sent twice"
                self.of[name] = production.log, production.seq


def check_effects(plan: Plan) -> None:
    """I1, I2, I14: every stream has what it has when the graph is run by hand; each node met
    what was sent to it once, and in the order of each sender."""
    origins = Origins()
    stage = random_graphs.run(plan, origins.note)
    streams = random_graphs.by_hand(plan, random_graphs.values(plan))
    sources = len(plan.sources)
    ids = {name: known.id for name, known in stage.world.store.tables.computations.items()}
    rows = {
        dot.name: (partition, place)
        for partition, given in enumerate(plan.arrivals())
        for place, dot in enumerate(given)
        if isinstance(dot, Dot)
    }
    for number, node in enumerate(plan.nodes):
        found = Counter((dot.key, dot.name, dot.second) for dot in stage.outputs(number))
        expected = Counter((dot.key, dot.name, dot.second) for dot in streams[sources + number])
        assert found == expected, (
            f"node {number}: missing {expected - found}, too much {found - expected}"
        )
        if node.kind in WINDOWS:
            continue
        met: Counter[str] = Counter()
        last: dict[tuple[str, str, int], int] = {}
        counts: Counter[str] = Counter()
        for event in stage.journal(number):
            counts[event.key] += 1
            if event.count:
                assert event.count == counts[event.key], "an event twice, or one is missing"
            if event.what != "got":
                continue
            met[event.name] += 1
            if event.stream.startswith("s"):
                log, place = rows[event.name]
            else:
                log, place = origins.of[ids[f"n{number}"], event.stream, event.name]
            line = event.key, event.stream, log
            assert last.get(line, -1) < place, f"out of order: {event}"
            last[line] = place
        sent = Counter(dot.name for stream in node.reads for dot in streams[stream])
        assert met == sent, f"node {number} met {met}, was sent {sent}"
    nothing_left(stage)


# -- the tests -------------------------------------------------------------------------------------

PROPERTIES: dict[str, tuple[Callable[[Plan], None], Drawn]] = {
    "watermarks never go back and never pass pending work": (
        check_watermarks,
        plans((*EXACT, "timers", *WINDOWS), lates=ALL_LATENESS),
    ),
    "final panes equal a batch answer": (
        check_windows,
        either(
            plans((*EXACT, *WINDOWS, *WINDOWS), punctual=True, lates=ALL_KEPT),
            plans((*SIMPLE, *WINDOWS, *WINDOWS), punctual=False, lates=ALL_KEPT),
        ),
    ),
    "panes hold what is within allowed lateness": (check_allowed_lateness, phased),
    "timers fire in order and once": (
        check_timers,
        plans(("timers", "timers", "echo", "hold", *SIMPLE)),
    ),
    "effects happen once, all of them, in order": (
        check_effects,
        either(plans(EXACT), plans((*EXACT, *WINDOWS), punctual=True)),
    ),
}


@pytest.mark.parametrize("what", PROPERTIES)
def test_of_random_graphs(what: str) -> None:
    check, make = PROPERTIES[what]
    checked(make, check, FEWER_EXAMPLES if check is check_effects else EXAMPLES)()


@pytest.mark.soak
@pytest.mark.parametrize("what", PROPERTIES)
def test_of_random_graphs_for_long(what: str) -> None:
    check, make = PROPERTIES[what]
    checked(make, check, SOAK_EXAMPLES)()
