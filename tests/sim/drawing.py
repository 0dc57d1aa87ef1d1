"""Scenarios drawn from seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from tests.sim.scenario import (
    LEASE_SECONDS,
    STRONG,
    Act,
    Air,
    Calls,
    Event,
    Member,
    Mode,
    Scenario,
)
from tests.support.random_graphs import (
    ALL_KEPT,
    EXACT,
    SIMPLE,
    WINDOWS,
    Drawn,
    Limits,
    Plan,
    Row,
    Step,
    Wait,
    Word,
    plans,
)

SPAN_SECONDS = 10.0
"""In which everything that goes wrong begins."""

KINDS: tuple[Drawn, ...] = (
    plans(EXACT),
    plans((*EXACT, "timers")),
    plans((*SIMPLE, *WINDOWS), punctual=True, lates=ALL_KEPT),
    plans(SIMPLE),
)

EVENTS: tuple[Event, ...] = (
    "join", "join", "leave", "crash", "crash", "crash", "vanish", "pause", "pause", "pause",
    "stall",
    "stall", "mute", "mute", "cut", "part", "deaf", "away", "storm", "move", "move", "split",
    "split", "merge",
)  # fmt: skip

LOSES = 0.25
"""The share of scenarios with a server that loses commits."""

STEPS = 0.15
"""The share of scenarios with a server whose clock is set."""

TOPICS = 0.25
"""The share of scenarios that write to topics."""

STEP_SECONDS = (-300.0, -30.0, -4.0, -1.0, 30.0, 300.0)

HAND_OVERS: tuple[Event, ...] = ("crash", "crash", "vanish", "leave", "move", "move", "join")

WEAKLY: tuple[Mode, ...] = (
    Mode(weak=True),
    Mode(weak=True),
    Mode(weak=True, tree=True),
    Mode(weak=True, exactly_once=False),
    Mode(weak=True, spread=True),
)

OTHERWISE: tuple[Mode, ...] = (
    Mode(exactly_once=False),
    Mode(at_most_once=True),
    Mode(spread=True),
)


def draw(seed: int) -> Scenario:
    """The scenario of a seed."""
    chance = Random(seed)
    plan = _plan(chance)
    scenario = Scenario(
        plan,
        _modes(chance, plan),
        tuple(_member(chance) for _ in range(chance.choice([1, 2, 2, 3, 4]))),
        _acts(chance),
        _air(chance),
        _calls(chance),
        chance.choice([5, 20, 50]) if chance.random() < 0.1 else None,
        chance.random() < 0.75,
        seed=seed,
    )
    scenario = _under_load(chance, scenario) if chance.random() < 0.5 else scenario
    scenario = _stepping(Random(~seed * 2), _losing(Random(~seed), scenario))
    return _writing(Random(~seed * 3), scenario)


def _writing(chance: Random, scenario: Scenario) -> Scenario:
    """The same with topics, whose brokers are away now and then; mostly as it is."""
    if chance.random() > TOPICS:
        return scenario
    times = chance.choice([0, 1, 1, 2])
    more = [_at_some_time(chance, scenario, "dark", (0.3, 2.0, 6.0)) for _ in range(times)]
    return _with_acts(replace(scenario, topics=True), more)


def _stepping(chance: Random, scenario: Scenario) -> Scenario:
    """The same with a server whose clock is set, once; mostly as it is."""
    if chance.random() > STEPS:
        return scenario
    return _with_acts(scenario, [_at_some_time(chance, scenario, "step", STEP_SECONDS)])


def _losing(chance: Random, scenario: Scenario) -> Scenario:
    """The same with a server that loses its newest commits, once or twice; mostly as it is."""
    if chance.random() > LOSES:
        return scenario
    times = chance.choice([1, 1, 2])
    more = [_at_some_time(chance, scenario, "lose", (0.05, 0.3, 1.0, 3.0)) for _ in range(times)]
    return _with_acts(scenario, more)


def _at_some_time(chance: Random, scenario: Scenario, what: Event, hows: Sequence[float]) -> Act:
    """Something that happens amid the others."""
    at, commits = round(chance.random() * SPAN_SECONDS, 3), None
    if _is_under_load(scenario):
        at, commits = SPAN_SECONDS, chance.randrange(5, 160)
    return Act(at, what, 0, chance.choice(hows), commits)


def _with_acts(scenario: Scenario, more: Sequence[Act]) -> Scenario:
    acts, under_load = [*scenario.acts, *more], _is_under_load(scenario)
    acts.sort(key=lambda act: (act.commits or 0) if under_load else act.at)
    return replace(scenario, acts=tuple(acts))


def _is_under_load(scenario: Scenario) -> bool:
    return any(act.commits is not None for act in scenario.acts)


def _under_load(chance: Random, scenario: Scenario) -> Scenario:
    """The same with more rows than there are credits and few intervals; what goes wrong goes wrong
    while records are on their way. No bucket is dropped: before that all intervals commit, and so
    wake whatever sleeps."""
    plan = scenario.plan
    steps: list[Step] = []
    for step in plan.steps:
        steps.append(step)
        if isinstance(step, Row):
            more = chance.choice([0, 1, 3, 6])
            steps += [replace(step, key=chance.choice("abcdefgh")) for _ in range(more)]
    limits = replace(
        plan.limits,
        intervals=chance.choice([1, 1, 2]),
        unacked=chance.choice([1, 1, 2]),
        bucket=120.0,
    )
    members = [*scenario.members, *[Member()] * chance.choice([0, 1, 2])][:4]
    acts = [
        *scenario.acts,
        *(Act(SPAN_SECONDS, chance.choice(HAND_OVERS), chance.randrange(24)) for _ in range(2)),
    ]
    moments = sorted(chance.randrange(10, 160) for _ in acts)
    chance.shuffle(acts)
    return replace(
        scenario,
        plan=replace(plan, steps=tuple(steps), limits=limits),
        acts=tuple(
            replace(act, at=SPAN_SECONDS, commits=commits)
            for act, commits in zip(acts, moments, strict=True)
        ),
        members=tuple(members),
        calls=replace(scenario.calls, usual_seconds=chance.choice([0.004, 0.03, 0.03])),
        quiet=True,
    )


def _plan(chance: Random) -> Plan:
    plan = chance.choice(KINDS)(chance)
    steps: list[Step] = []
    for step in (*plan.steps, *chance.choice(KINDS)(chance).steps):
        if isinstance(step, Row | Word):
            partition = step.partition
            if partition is None or partition < len(plan.partitions()):
                steps.append(step)
        else:
            steps.append(Wait(chance.choice([4, 20, 60])))
    if plan.punctual:
        steps = [step for step in steps if not isinstance(step, Word)]
    return replace(plan, steps=tuple(steps), limits=_limits(chance), faults=())


def _limits(chance: Random) -> Limits:
    pick = chance.choice
    return Limits(
        intervals=pick([1, 1, 2, 3]),
        chunk=pick([1, 2, 100]),
        bundle=pick([1, 3, 1000]),
        unacked=pick([1, 2, 5, 1000]),
        timers=pick([1, 2, 1000]),
        cache=pick([0, 1 << 20]),
        fold=pick([0.3, 2.0]),
        bucket=pick([3.0, 120.0]),
    )


def _modes(chance: Random, plan: Plan) -> tuple[Mode, ...]:
    """Nothing behind a node that may double values keeps them by their names."""
    modes: list[Mode] = []
    for number in range(len(plan.nodes)):
        mode = _mode(chance, plan, number)
        stream = len(plan.sources) + number
        behind = [other.kind for other in plan.nodes if stream in _all_above(plan, other.reads)]
        if not mode.exactly_once and not mode.at_most_once and not set(behind) <= set(SIMPLE):
            mode = replace(mode, exactly_once=True)
        modes.append(mode)
    return tuple(modes)


def _all_above(plan: Plan, reads: Sequence[int]) -> set[int]:
    """The streams that what is read comes of."""
    found = set(reads)
    for stream in reads:
        if stream >= len(plan.sources):
            found |= _all_above(plan, plan.nodes[stream - len(plan.sources)].reads)
    return found


def _mode(chance: Random, plan: Plan, number: int) -> Mode:
    node = plan.nodes[number]
    if node.kind in ("pass", "filter", "split") and not node.waits and chance.random() < 0.35:
        return chance.choice(WEAKLY)
    if node.kind in ("pass", "filter", "split") and chance.random() < 0.2:
        return chance.choice(OTHERWISE)
    return STRONG


def _member(chance: Random) -> Member:
    """Mostly within what a lease tolerates; sometimes far beyond it."""
    if chance.random() < 0.6:
        return Member()
    rate = chance.choice([0.9, 1.0, 1.1, 0.5, 0.4, 2.0])
    return Member(chance.choice([-3600.0, -5.0, 0.0, 5.0, 600.0]), rate)


def _acts(chance: Random) -> tuple[Act, ...]:
    acts = [
        Act(
            round(chance.random() * SPAN_SECONDS, 3),
            what := chance.choice(EVENTS),
            chance.randrange(12),
            _how(chance, what),
        )
        for _ in range(chance.choice([0, 1, 2, 3, 4, 6]))
    ]
    return tuple(sorted(acts, key=lambda act: act.at))


def _how(chance: Random, what: Event) -> float:
    if what == "crash":  # after so many steps
        return float(chance.choice([0, 3, 10, 40, 150]))
    if what in ("pause", "stall", "mute"):
        return round(chance.choice([0.3, 1.2, 2.5]) * LEASE_SECONDS, 2)
    if what == "split":
        return chance.choice([0.1, 0.5, 0.9])
    return round(chance.choice([0.2, 1.0, 4.0]) * (0.5 + chance.random()), 2)


def _air(chance: Random) -> Air:
    if chance.random() < 0.4:
        return Air()
    return Air(
        drop=chance.choice([0.0, 0.02, 0.1]),
        duplicate=chance.choice([0.0, 0.05, 0.2]),
        overtake=chance.choice([0.0, 0.05, 0.2]),
        delay=chance.choice([0.01, 0.05, 0.5]),
    )


def _calls(chance: Random) -> Calls:
    if chance.random() < 0.4:
        return Calls()
    return Calls(
        lost=chance.choice([0.0, 0.01, 0.03]),
        torn=chance.choice([0.0, 0.01, 0.03]),
        slow=chance.choice([0.0, 0.02, 0.1]),
        slow_seconds=chance.choice([0.5, 1.0, 2 * LEASE_SECONDS]),
    )
