"""The plan of a pipeline on Spark: the steps of its graph, and the level of each.

Steps of one level run in one operator. A step is one level above the highest of the steps that it
reads, so rows only go up. Nothing of a plan is sent to Spark's workers: each process makes it from
MODULE:PIPELINE, or of the text of a file of SQL.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from millwheel.core.chunk import Chunk
from millwheel.core.model import SLOTS, Delivery
from millwheel.graph.order import Graph
from millwheel.pipeline import Pipeline
from millwheel.runtime.interval.step import Step
from millwheel.runtime.routes.routes import StreamRoute, connect
from millwheel.spark.engine.targets import pipeline_of_target


@dataclass(frozen=True, eq=False)
class SparkPlan:
    """The steps of a pipeline by name, with their routes, and their levels."""

    pipeline: Pipeline
    graph: Graph
    steps: dict[str, Step]
    levels: dict[str, int]
    """Level of each step: 0 for injectors, otherwise the number of the operator, from 1."""

    @property
    def depth(self) -> int:
        return max(self.levels.values())

    def name_of(self, id_: int) -> str:
        return self.graph.nodes[id_ - 1].name

    @classmethod
    def of(cls, pipeline: Pipeline) -> SparkPlan:
        graph = pipeline.graph()
        steps: dict[str, Step] = {}
        levels: dict[str, int] = {}
        for place, node in enumerate(graph.nodes):
            routes = {s.name: StreamRoute(s, node.sinks.get(s.name, [])) for s in node.writes}
            steps[node.name] = Step(place + 1, place, node, routes)
            above = [levels[sender.name] for sender in graph.upstream(node)]
            levels[node.name] = 1 + max(above, default=-1)
        for step in steps.values():
            connect(steps, step.node, step.routes)
            step.arrange([_Everywhere()])
        return cls(pipeline, graph, steps, levels)


@lru_cache(maxsize=4)
def planned(target: str) -> SparkPlan:
    """The plan of a shipped target, made once in each process. `UsageError` if its module is not on
    this machine."""
    return SparkPlan.of(pipeline_of_target(target))


class _Everywhere:
    """The only destination of a step: Spark finds the task of a record by its key."""

    id = 0
    slots = (0, SLOTS)
    is_here = True
    queued = 0

    @property
    def intake(self) -> Any:
        raise AssertionError("on Spark nothing is queued")

    def insert(self, deliveries: list[Delivery[Any]] | list[Chunk], /) -> None:
        raise AssertionError("on Spark nothing is queued")
