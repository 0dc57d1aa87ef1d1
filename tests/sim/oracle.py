"""What must have come of a scenario in the end: the graph run by hand, over all that its sources gave."""

from __future__ import annotations

from collections import Counter

from millwheel.store.memory import MemoryStore
from tests.sim.scenario import Scenario
from tests.sim.violation import Violation
from tests.support import random_graphs
from tests.support.random_graphs import OUTPUT_TABLES, WINDOWS


def check_outcome(scenario: Scenario, store: MemoryStore) -> None:
    """Each stream has exactly what it should have; at least that where effects happen at least once,
    at most that where records may be lost; and nothing is left over.

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
        missing, too_much = expected - found, found - expected
        if scenario.loses(number):
            missing = Counter()
        if scenario.doubles(number):
            too_much = Counter(row for row in found if row not in expected)
        if missing or too_much:
            what = f"node {number}: missing {dict(missing)}, too much {dict(too_much)}"
            raise Violation("the batch oracle", what)
    if store.dead_letters:
        raise Violation("nothing is left", f"dead letters {store.dead_letters}")
    if store.timers():
        raise Violation("nothing is left", f"timers {store.timers()}")


def is_known(scenario: Scenario, number: int) -> bool:
    """Whether the values alone say what a node makes of them: of windows only if nothing is late and
    nothing lost or doubled, of nodes of timers never."""
    plan = scenario.plan
    node = plan.nodes[number]
    exact = not scenario.loses(number) and not scenario.doubles(number)
    if node.kind == "timers" or (node.kind in WINDOWS and not (plan.punctual and exact)):
        return False
    sources = len(plan.sources)
    return all(is_known(scenario, stream - sources) for stream in node.reads if stream >= sources)
