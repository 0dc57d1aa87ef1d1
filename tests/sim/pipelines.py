"""The pipeline of a scenario: the nodes of `tests.support.random_graphs`, each added in its
mode."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from millwheel import Bundles, Computation, Context, Pipeline, Record
from millwheel.sinks import SinkUse
from tests.sim.brokers import Brokers, SimulatedSink
from tests.sim.scenario import STRONG, Mode, Scenario
from tests.support.random_graphs import (
    IDLE_SECONDS,
    JOURNAL_TABLES,
    JOURNALS,
    OUTPUT_TABLES,
    OUTPUTS,
    SECOND,
    SOURCES,
    Dot,
    Keeping,
    Node,
    Tape,
    Tapes,
    Through,
    add_node,
    key_of,
    outcome,
    time_of,
)
from tests.support.values import at

STRAGGLER_AFTER = timedelta(seconds=0.3)
REPLAY_AFTER = timedelta(seconds=1)


class Passing(Computation[Dot, None]):
    """Weak: what it produces depends on the record alone, and it keeps and writes nothing."""

    def __init__(self, number: int, node: Node) -> None:
        self.writes = (OUTPUTS[number],)
        self._number = number
        self._node = node

    async def process_record(self, record: Record[Dot], ctx: Context[None]) -> None:
        for dot in outcome(self._number, self._node, record.value):
            moment = max(record.timestamp, at(dot.second))
            ctx.produce(OUTPUTS[self._number], dot, timestamp=moment)


def make_pipeline(scenario: Scenario, tapes: Sequence[Tape], brokers: Brokers) -> Pipeline:
    """The graph of a scenario over its sources, and the brokers of its topics."""
    plan = scenario.plan
    pipeline = Pipeline("graph", settings=scenario.settings())
    for number, source in enumerate(plan.sources):
        mine = [t for t, owner in zip(tapes, plan.partitions(), strict=True) if owner == number]
        pipeline.inject(
            SOURCES[number],
            Tapes(mine),
            timestamp=time_of,
            lateness=source.lateness * SECOND,
            idle_after=IDLE_SECONDS * SECOND if source.idle else None,
            name=f"i{number}",
        )
    for number, mode in enumerate(scenario.modes):
        if mode == STRONG:
            add_node(pipeline, plan, number)
        else:
            _add(pipeline, scenario, number, mode)
        if scenario.topics:
            pipeline.sink(OUTPUTS[number], _topic(scenario, number, brokers))
    return pipeline


def _topic(scenario: Scenario, number: int, brokers: Brokers) -> SimulatedSink:
    """The topic of a node. A server that loses commits may have its records written again."""
    loses = any(act.what == "lose" for act in scenario.acts)
    return SimulatedSink(
        brokers,
        topic_of(number),
        key=lambda dot: dot.key,
        bundles=Bundles(scenario.plan.limits.bundle, 0.0),
        on_lost_commits="repeat" if loses else "fail",
    )


def topic_of(number: int) -> str:
    """The name of a node's topic."""
    return f"topic{number}"


def _add(pipeline: Pipeline, scenario: Scenario, number: int, mode: Mode) -> None:
    plan = scenario.plan
    node = plan.nodes[number]
    streams = [plan.stream(stream) for stream in node.reads]
    inputs: list[Any] = [s.spread() if mode.spread else s.by(key_of) for s in streams]
    computation: Computation[Any, Any] = Passing(number, node)
    if not mode.weak:
        computation = (Keeping if node.kind == "count" else Through)(number, node)
    pipeline.add(
        computation,
        *inputs,
        name=f"n{number}",
        productions="weak" if mode.weak else "strong",
        acknowledgement="tree" if mode.tree else "chain",
        exactly_once=mode.exactly_once,
        delivery="at_most_once" if mode.at_most_once else "acknowledged",
        straggler_after=STRAGGLER_AFTER,
        replay_after=REPLAY_AFTER,
    )
    pipeline.sinks.append((OUTPUTS[number], SinkUse(OUTPUT_TABLES[number], apart=mode.weak)))
    if not mode.weak:
        pipeline.sink(JOURNALS[number], JOURNAL_TABLES[number])
