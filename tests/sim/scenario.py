"""What is to happen in one simulation, as plain data whose text makes it again.

The pipeline and what its sources give are a `tests.support.random_graphs.Plan`; beside it stand how
each node is added, who works on it with what clock, how bad wire and server are, and what happens
when. The seed draws what is too small to be told: how long each call takes, which frame is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from millwheel.runtime.process.lease import MARGIN
from millwheel.settings import Settings
from tests.support import random_graphs
from tests.support.random_graphs import Plan

T = TypeVar("T")

WAIT_SECONDS = 0.05
"""What one turn of a `Wait` of the plan stands for."""

LEASE_SECONDS = 4.0

Event = Literal[
    "join",  # one more worker
    "leave",  # it ends in order
    "crash",  # its process is gone between two of its steps, and its connections break
    "vanish",  # its machine is gone, and nobody is told
    "pause",  # it stands still for `how` seconds, and goes on without knowing
    "stall",  # nothing that it sends to the server arrives for `how` seconds, and then all of it
    "mute",  # its heartbeats do not arrive for `how` seconds, and all else does
    "cut",  # its connections to another one break
    "part",  # nothing comes through between two for `how` seconds
    "deaf",  # nothing comes through from one to another for `how` seconds
    "away",  # the server is gone for `how` seconds
    "dark",  # the brokers of the topics are gone for `how` seconds
    "step",  # the server's clock goes forward by `how` seconds, or back if it is below zero
    "lose",  # the server crashes, and comes back without the commits of the last `how` seconds
    "storm",  # calls of the server are lost, torn and slow for `how` seconds
    "move",  # somebody wishes that an interval be another worker's
    "split",  # somebody wishes that an interval be split, at the share `how` of its slots
    "merge",  # somebody wishes that an interval and its neighbour be merged
]


@dataclass(frozen=True)
class Act:
    """At a moment, in seconds from the start, something happens to somebody."""

    at: float
    what: Event
    who: int = 0
    """Which worker or interval, counted through those that are there."""
    how: float = 0.0
    commits: int | None = None
    """It happens before that if so many commits have taken effect: while there is something to
    do."""


@dataclass(frozen=True)
class Mode:
    """How a node is added to the pipeline."""

    weak: bool = False
    tree: bool = False
    exactly_once: bool = True
    at_most_once: bool = False
    spread: bool = False


STRONG = Mode()


@dataclass(frozen=True)
class Member:
    """A worker's clock, by how many seconds it is ahead and how fast it goes."""

    ahead: float = 0.0
    rate: float = 1.0

    @property
    def is_too_slow(self) -> bool:
        """Whether it believes in its lease when that is over: such a worker may fail, as long as
        it does no harm."""
        return self.rate < 1 - MARGIN


@dataclass(frozen=True)
class Air:
    """How bad the wire is while it is bad: probabilities, and the longest delay in seconds."""

    drop: float = 0.0
    duplicate: float = 0.0
    overtake: float = 0.0
    delay: float = 0.02


@dataclass(frozen=True)
class Calls:
    """How bad calls of the server are while they are bad."""

    lost: float = 0.0
    torn: float = 0.0
    slow: float = 0.0
    slow_seconds: float = 1.0
    usual_seconds: float = 0.004
    """How long a call takes at the most that nothing is wrong with: also when the weather is
    good."""


@dataclass(frozen=True)
class Scenario:
    """One simulation."""

    plan: Plan
    modes: tuple[Mode, ...]
    """Of each node."""
    members: tuple[Member, ...] = (Member(),)
    acts: tuple[Act, ...] = ()
    air: Air = Air()
    calls: Calls = Calls()
    copy_after: int | None = None
    """After so many commits the store is copied, and in the end another cluster goes on from
    there."""
    quiet: bool = False
    """Whether the sources stay open until all that they gave is done: nothing comes to anybody's
    help."""
    topics: bool = False
    """Whether what the nodes produce goes to topics of Kafka as well."""
    seed: int = 0

    def settings(self) -> Settings:
        """The limits of each worker."""
        return replace(
            self.plan.limits.settings(),
            lease_seconds=LEASE_SECONDS,
            placement_seconds=0.4,
            housekeeping_seconds=0.2,
        )

    def doubles(self, number: int) -> bool:
        """Whether the same value may come to a node twice, or twice from it: somewhere before it
        effects happen at least once."""
        mode = self.modes[number]
        return (not mode.exactly_once and not mode.at_most_once) or self._above(
            number, self.doubles
        )

    def loses(self, number: int) -> bool:
        """Whether a value may be lost at a node, or before it."""
        return self.modes[number].at_most_once or self._above(number, self.loses)

    def _above(self, number: int, what: Callable[[int], bool]) -> bool:
        sources = len(self.plan.sources)
        return any(
            what(stream - sources) for stream in self.plan.nodes[number].reads if stream >= sources
        )


def smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Scenarios that are a little less than this one: fewer acts, rows, nodes and workers."""
    for size in (4, 2, 1):
        for place in range(0, len(scenario.acts), size):
            acts = scenario.acts[:place] + scenario.acts[place + size :]
            if len(acts) < len(scenario.acts):
                yield replace(scenario, acts=acts)
    if len(scenario.members) > 1:
        yield replace(scenario, members=scenario.members[:-1])
    if scenario.air != Air():
        yield replace(scenario, air=Air())
    if scenario.calls != Calls():
        yield replace(scenario, calls=Calls())
    for number, member in enumerate(scenario.members):
        if member != Member():
            members = _with(scenario.members, number, Member())
            yield replace(scenario, members=members)
    if scenario.topics:
        yield replace(scenario, topics=False)
    if scenario.copy_after is not None:
        yield replace(scenario, copy_after=None)
    for plan in random_graphs.smaller(scenario.plan):
        yield replace(scenario, plan=plan, modes=_modes_of(scenario, plan))
    for number, mode in enumerate(scenario.modes):
        if mode != STRONG:
            yield replace(scenario, modes=_with(scenario.modes, number, STRONG))


def _modes_of(scenario: Scenario, plan: Plan) -> tuple[Mode, ...]:
    """The modes of those nodes that are left."""
    before = scenario.plan.nodes
    if len(plan.nodes) == len(before):
        return scenario.modes
    left = next(
        (place for place, node in enumerate(plan.nodes) if node.kind != before[place].kind),
        len(plan.nodes),
    )
    return scenario.modes[:left] + scenario.modes[left + 1 :]


def _with(found: tuple[T, ...], number: int, instead: T) -> tuple[T, ...]:
    return (*found[:number], instead, *found[number + 1 :])
