"""What a bystander knows of a run: everything that took effect in the store, in its order.

Nothing here is asked of an engine, and nothing of the tables of the store: it is written down from
commits, claims and cuts alone, and kept for ever. What values mean, and what must come of them, is
known of the scenario.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from millwheel.core.model import MAX_TIME, MIN_TIME, name_of, record_id
from millwheel.graph.node import Node
from millwheel.graph.order import Graph
from millwheel.store.memory.tables import Tables, changes_of
from millwheel.store.port.claims import Claim
from millwheel.store.port.commit import Commit, IntervalCommit
from tests.sim.scenario import Scenario
from tests.support.random_graphs import Dot, Event, Tape, outcome

Acked = tuple[int, list[tuple[int, int]]]
"""The first number that is not acknowledged, and runs beyond it."""


@dataclass(eq=False)
class Part:
    """A key interval, as its commits and cuts left it."""

    id: int
    computation: int
    slots: tuple[int, int]
    sequencer: int
    n: int = 0
    bucket: int = 0
    low: int = MIN_TIME
    input: int = MIN_TIME
    folded: int = 0
    changed: list[tuple[int, int]] = field(default_factory=list)
    """(n, bucket) of the commits with changes that are not folded yet."""


class Sent(NamedTuple):
    """A production as its commit wrote it."""

    receiver: int
    stream: str
    value: Any
    micros: int
    hold: int
    stamp: int
    id: bytes


class Pending(NamedTuple):
    """A timer that is set."""

    slot: int
    due: int
    hold: int


TimerName = tuple[int, bytes, str, str]
"""(computation, key, kind, tag)"""

EntryName = tuple[int, int, bytes, str]
"""(slot, computation, key, entry)"""


ELSEWHERE = frozenset(
    ("scenario", "plan", "tapes", "graph", "nodes", "_tables", "closing", "commits", "losses")
)
"""What a ledger knows that is not in the store, and how many commits there were."""


class Ledger:
    """What has taken effect."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.plan = scenario.plan
        self.parts: dict[int, Part] = {}
        self.logs: dict[int, int] = {}
        """Log -> interval."""
        self.sources: dict[int, int] = {}
        """Log of a source -> partition, counted through all sources."""
        self.sent: dict[int, dict[int, Sent]] = defaultdict(dict)
        """Log -> number -> what was stored under it, weak ones that were late among them."""
        self.weak: set[tuple[int, int]] = set()
        """(log, number) of those."""
        self.undone: dict[tuple[int, int], Sent] = {}
        """Strong productions that no commit of their reader has noted, and no sender as
        acknowledged."""
        self.acked: dict[int, Acked] = {}
        self.seen: set[tuple[int, bytes]] = set()
        """(computation, name of the id), for ever."""
        self.timers: dict[TimerName, Pending] = {}
        self.state: dict[EntryName, tuple[bytes, int]] = {}
        self.met: Counter[tuple[int, str]] = Counter()
        """(node, name) -> how often its code met that value in a commit that took effect."""
        self.events: Counter[tuple[int, str]] = Counter()
        """(node, key) -> how many lines of its journal there are."""
        self.rings: dict[tuple[int, str], dict[str, int]] = defaultdict(dict)
        """(node, key) -> the timers that it has set, by its journal."""
        self.last_met: dict[tuple[int, str, str, int], int] = {}
        """(node, key, stream, log) -> the number that was met last."""
        self.origins: dict[tuple[int, str, str], tuple[int, int]] = {}
        """(receiver, stream, name) -> (log, number)."""
        self.told: set[tuple[str, str]] = set()
        """(table of outputs, name) of each row."""
        self.standing: set[tuple[int, str]] = set()
        """(reader, name) of weak productions that are stored."""
        self.least: dict[int, int] = {}
        """Computation -> the least of its low watermarks."""
        self.read_at: dict[int, float] = {}
        """Interval -> when a claim has read it last, by virtual time."""
        self.commits = 0
        self.losses = 0
        """How often the server has lost commits."""
        self.closing = False
        """The sources have ended."""
        self.tapes: Sequence[Tape] = ()
        self._tables: Tables | None = None
        self._ready = False

    # -- a server that loses what took effect ----------------------------------------

    def saved(self) -> dict[str, Any]:
        """All that is written down now, but for what no server can lose."""
        return deepcopy({name: of for name, of in vars(self).items() if name not in ELSEWHERE})

    def go_back(self, saved: dict[str, Any]) -> None:
        """What was written down since was lost by the server."""
        vars(self).update(deepcopy(saved))
        self.losses += 1

    # -- the graph ----------------------------------------------------------------

    def watch(self, tables: Tables, tapes: Sequence[Tape], graph: Graph) -> None:
        """Learn what ids names have, once they are deployed; only for that tables are read."""
        self._tables, self.tapes, self.graph = tables, tapes, graph

    def prepare(self) -> None:
        """Write down what was deployed."""
        if self._ready:
            return
        self._ready = True
        tables = self._tables
        assert tables is not None
        self.ids = {name: known.id for name, known in tables.computations.items()}
        self.names = {id_: name for name, id_ in self.ids.items()}
        self.nodes = {self.ids[node.name]: node for node in self.graph.nodes}
        self.readers: dict[str, list[int]] = defaultdict(list)
        for id_, node in self.nodes.items():
            for input_ in node.inputs:
                self.readers[input_.stream.name].append(id_)
        self.senders: dict[int, list[int]] = {
            self.ids[node.name]: [self.ids[up.name] for up in self.graph.upstream(node)]
            for node in self.graph.nodes
            if node.kind != "injector"
        }
        for row in tables.in_order():
            slots = (row.slot_from, row.slot_to)
            self.parts[row.id] = Part(row.id, row.computation, slots, row.sequencer)
        partition = 0
        for number in range(len(self.plan.sources)):
            for part in self.of(self.ids[f"i{number}"]):
                (log,) = [id_ for id_, log in tables.logs.items() if log.interval_id == part.id]
                self.sources[log] = partition
                self.logs[log] = part.id
                partition += 1
        (bucket,) = tables.buckets
        for part in self.parts.values():
            part.bucket = bucket

    def of(self, computation: int) -> list[Part]:
        """The intervals of a computation, in the order of slots."""
        found = [part for part in self.parts.values() if part.computation == computation]
        return sorted(found, key=lambda part: part.slots)

    def part_of(self, computation: int, slot: int) -> Part:
        """Who has a slot."""
        for part in self.parts.values():
            if part.computation == computation and part.slots[0] <= slot < part.slots[1]:
                return part
        raise AssertionError(f"slot {slot} of computation {computation} is nobody's")

    def number_of(self, computation: int) -> int | None:
        """The number of a node of the plan; None: it is none of them."""
        name = self.names[computation]
        return int(name[1:]) if name[0] in "n" and name[1:].isdigit() else None

    def node(self, computation: int) -> Node:
        return self.nodes[computation]

    def is_shown(self, computation: int) -> bool:
        """Whether a journal tells what its code met."""
        number = self.number_of(computation)
        return number is not None and not self.scenario.modes[number].weak

    # -- what takes effect ----------------------------------------------------------

    def claimed(self, raised: Mapping[int, int], new_logs: Mapping[int, int]) -> None:
        for id_, sequencer in raised.items():
            self.parts[id_].sequencer = sequencer
        for id_, log in new_logs.items():
            self.logs[log] = id_

    def read(self, claims: Sequence[Claim], now: float) -> None:
        """What a claim reads counts unless there is a newer one: whoever made it was cut off
        then."""
        for claim in claims:
            part = self.parts.get(claim.interval.id)
            if part is None or part.sequencer <= claim.interval.sequencer:
                self.read_at[claim.interval.id] = now

    def split(self, lower: int, upper: int, at: int, sequencers: tuple[int, int]) -> None:
        part = self.parts[lower]
        top = part.slots[1]
        part.slots, part.sequencer = (part.slots[0], at), sequencers[0]
        self.parts[upper] = Part(
            upper, part.computation, (at, top), sequencers[1], low=part.low, input=part.input
        )

    def merged(self, lower: int, upper: int, made: int, sequencer: int) -> None:
        one, other = self.parts.pop(lower), self.parts.pop(upper)
        self.parts[made] = Part(
            made, one.computation, (one.slots[0], other.slots[1]), sequencer,
            low=min(one.low, other.low), input=max(one.input, other.input),
        )  # fmt: skip
        for log, owner in self.logs.items():
            if owner in (lower, upper):
                self.logs[log] = made

    def folded(self, interval: int, through: int) -> None:
        part = self.parts[interval]
        part.folded = through
        part.changed = [(n, bucket) for n, bucket in part.changed if n > through]

    def retired(self, logs: Sequence[int]) -> None:
        """Their last acknowledgements may be stored nowhere, and need not be."""
        self.undone = {where: sent for where, sent in self.undone.items() if where[0] not in logs}

    def committed(self, commit: Commit) -> None:
        """Write down a commit that was checked."""
        self.commits += 1
        changed = {state[0] for state in commit.states} | {t.interval_id for t in commit.timers}
        for link in commit.intervals:
            part = self.parts[link.interval_id]
            part.n, part.bucket = link.n, commit.bucket
            part.low, part.input = link.low_watermark, link.input_watermark
            if link.interval_id in changed:
                part.changed.append((link.n, commit.bucket))
            self.acked.update(acked_of(link))
        self._note_records(commit)
        for change in commit.timers:
            name = change.computation, change.key, change.kind, change.tag
            self.timers.pop(name, None)
            if change.due is not None and change.hold is not None:
                self.timers[name] = Pending(change.slot, change.due, change.hold)
        for entry in chain.from_iterable(map(changes_of, commit.states)):
            where = entry.slot, entry.computation, entry.key, entry.entry
            self.state.pop(where, None)
            if entry.value is not None:
                self.state[where] = entry.value, entry.version
        for number, event in self.journal(commit):
            self._note_event(number, event)
        for table, values in commit.rows:
            if table.name.startswith("out"):
                self.told.add((table.name, values[1]))
        self.undone = {
            (log, seq): sent
            for (log, seq), sent in self.undone.items()
            if (sent.receiver, name_of(sent.id)) not in self.seen
            and not self.is_acknowledged(log, seq)
        }
        self.least = self.least_now()

    def least_now(self) -> dict[int, int]:
        """The least low watermark of each computation."""
        least: dict[int, int] = {}
        for part in self.parts.values():
            least[part.computation] = min(least.get(part.computation, MAX_TIME), part.low)
        return least

    def _note_records(self, commit: Commit) -> None:
        for rows in commit.seen.values():
            self.seen.update((receiver, name_of(id_)) for receiver, id_ in rows)
        for production, is_weak in (
            *((p, False) for p in commit.productions),
            *((p, True) for p in commit.stragglers),
        ):
            sent = Sent(
                production.receiver, production.stream, production.value, production.micros,
                production.hold, production.stamp, production.id,
            )  # fmt: skip
            log, seq = production.log, production.seq
            self.sent[log][seq] = sent
            if is_weak:
                self.weak.add((log, seq))
                if isinstance(sent.value, Dot):
                    self.standing.add((sent.receiver, sent.value.name))
            elif sent.receiver:
                self.undone[log, seq] = sent
                if isinstance(sent.value, Dot):
                    self.origins[sent.receiver, sent.stream, sent.value.name] = log, seq

    def _note_event(self, number: int, event: Event) -> None:
        self.events[number, event.key] += 1
        rings = self.rings[number, event.key]
        if event.what == "set":
            rings[event.name] = event.moment
        elif event.what in ("cancel", "rang"):
            rings.pop(event.name, None)
        elif event.what == "got":
            self.met[number, event.name] += 1
            place = self.place_of(number, event)
            if place is not None:
                self.last_met[number, event.key, event.stream, place[0]] = place[1]

    # -- what is asked of it ----------------------------------------------------------

    def journal(self, commit: Commit) -> Iterator[tuple[int, Event]]:
        """(node, line) of each journal that a commit writes to."""
        for table, values in commit.rows:
            if table.name.startswith("journal"):
                yield int(table.name.removeprefix("journal")), Event(*values)

    def place_of(self, number: int, event: Event) -> tuple[int, int] | None:
        """(log, number) of a value that a node met; None: it was in no log."""
        if event.stream.startswith("s"):
            for log, partition in self.sources.items():
                if event.name.startswith("ABCDEF"[partition]):
                    return log, int(event.name[1:])
        return self.origins.get((self.ids[f"n{number}"], event.stream, event.name))

    def is_acknowledged(self, log: int, seq: int) -> bool:
        """By what its sender has stored."""
        return is_in(self.acked.get(log, (0, [])), seq)

    def rows(self, log: int) -> Iterator[tuple[int, Dot]]:
        """(offset, value) of each row of a source."""
        for offset, step in enumerate(self.tapes[self.sources[log]].steps):
            if isinstance(step.value, Dot):
                yield offset, step.value

    def stream_of(self, log: int) -> str:
        """The stream that a source gives."""
        return f"s{self.plan.partitions()[self.sources[log]]}"

    def is_done(self, reader: int, log: int, seq: int, dot: Dot) -> bool:
        """Whether a record that was sent need not be sent again: its effects are durable, or what
        stands for it is; or nobody can tell."""
        node = self.nodes[reader]
        if node.exactly_once and (reader, record_id(log, seq)) in self.seen:
            return True
        strong = node.exactly_once and not node.is_weak and not node.at_most_once
        return not strong and self._has_come(reader, dot)

    def _has_come(self, reader: int, dot: Dot) -> bool:
        """Whether a reader has done with a value, by what is told of it by name."""
        node, number = self.nodes[reader], self.number_of(reader)
        if node.at_most_once:
            return True
        if node.is_weak:
            assert number is not None
            return all(
                (next_, output.name) in self.standing or self._has_come(next_, output)
                for output in outcome(number, self.plan.nodes[number], dot)
                for next_ in self.readers[f"n{number}"]
            )
        if number is not None and self.is_shown(reader):
            return self.met[number, dot.name] > 0
        if node.kind == "relay" and node.sinks:
            (table,) = (use.sink.name for uses in node.sinks.values() for use in uses)  # type: ignore[union-attr]
            return (table, dot.name) in self.told
        return True

    def is_finished(self) -> bool:
        """Whether all time is over, and nothing is on its way."""
        return (
            self._ready
            and all(part.low == MAX_TIME for part in self.parts.values())
            and not self.undone
        )

    def describe(self) -> str:
        """What is not done, by this."""
        if not self._ready:
            return "nothing was deployed"
        lines = [
            f"{self.names[part.computation]}{part.slots} id {part.id} n {part.n} low {part.low} "
            f"input {part.input}"
            for part in self.parts.values()
            if part.low != MAX_TIME
        ]
        lines += [
            f"log {log} number {seq} for {self.names[sent.receiver]}: {sent.value}"
            for (log, seq), sent in list(self.undone.items())[:10]
        ]
        return "\n".join(lines)


def acked_of(link: IntervalCommit) -> dict[int, Acked]:
    """Per log what a commit says of it."""
    return {
        int(log): (first, runs) for log, (first, runs) in msgspec.json.decode(link.acked).items()
    }


def is_in(acked: Acked, seq: int) -> bool:
    first, runs = acked
    return seq < first or any(low <= seq <= high for low, high in runs)
