"""What must have come of a scenario in the end: the graph run by hand, over all that its sources
gave."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from millwheel.store.memory import MemoryStore
from tests.sim.brokers import Brokers
from tests.sim.pipelines import topic_of
from tests.sim.scenario import Scenario
from tests.sim.violation import Violation
from tests.support import random_graphs
from tests.support.random_graphs import OUTPUT_TABLES, WINDOWS, Dot

Row = tuple[Any, ...]
"""(key, name, second)"""

decode = msgspec.json.Decoder(Dot).decode


def check_outcome(scenario: Scenario, store: MemoryStore, brokers: Brokers | None) -> None:
    """Each stream has exactly what it should have; at least that where effects happen at least
    once, at most that where records may be lost; and nothing is left over. Topics too, if there are
    brokers.

    Raises:
        Violation: it is not so.
    """
    plan = scenario.plan
    streams = random_graphs.by_hand(plan, random_graphs.values(plan))
    for number in range(len(plan.nodes)):
        if not is_known(scenario, number):
            continue
        found = Counter(tuple(row[:3]) for row in store.rows(OUTPUT_TABLES[number].name))
        dots = streams[len(plan.sources) + number]
        expected = Counter((dot.key, dot.name, dot.second) for dot in dots)
        doubles = scenario.doubles(number)
        _compare(f"node {number}", expected, found, doubles=doubles, loses=scenario.loses(number))
        if brokers is not None and scenario.topics:
            written = [
                decode(message.value or b"") for message in brokers.written[topic_of(number)]
            ]
            _compare(
                f"the topic of node {number}",
                expected,
                Counter((dot.key, dot.name, dot.second) for dot in written),
                doubles=doubles or any(act.what == "lose" for act in scenario.acts),
                loses=scenario.loses(number),
            )
    if store.dead_letters:
        raise Violation("nothing is left", f"dead letters {store.dead_letters}")
    if store.timers():
        raise Violation("nothing is left", f"timers {store.timers()}")


def _compare(
    what: str, expected: Counter[Row], found: Counter[Row], *, doubles: bool, loses: bool
) -> None:
    missing, too_much = expected - found, found - expected
    if loses:
        missing = Counter()
    if doubles:
        too_much = Counter(row for row in found if row not in expected)
    if missing or too_much:
        text = f"{what}: missing {dict(missing)}, too much {dict(too_much)}"
        raise Violation("the batch oracle", text)


def is_known(scenario: Scenario, number: int) -> bool:
    """Whether the values alone say what a node makes of them: of windows only if nothing is late
    and nothing lost or doubled, of nodes of timers never."""
    plan = scenario.plan
    node = plan.nodes[number]
    exact = not scenario.loses(number) and not scenario.doubles(number)
    if node.kind == "timers" or (node.kind in WINDOWS and not (plan.punctual and exact)):
        return False
    sources = len(plan.sources)
    return all(is_known(scenario, stream - sources) for stream in node.reads if stream >= sources)
