"""How far a pipeline is in its input, and whether two are at the same place."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import psycopg

from millwheel.core.model import MAX_TIME, MIN_TIME
from millwheel.store.console.inspection import time_text
from millwheel.store.console.step_names import stored_nodes
from millwheel.store.postgres.statements import Statements
from millwheel.windows import WindowLengths, duration_of, lengths_of

ONE_SECOND = 1_000_000


class StepMark(NamedTuple):
    """Watermarks are microseconds; None: it has committed nothing."""

    kind: str
    id: int
    low_watermark: int | None
    input_watermark: int | None


@dataclass(frozen=True)
class WindowEntries:
    """Entries of a step's state that belong to windows, by the start of their windows."""

    lengths: WindowLengths
    kept: int | None
    """Microseconds for which a window is kept after its end; None: for ever."""

    def final(self, low: int, high: int) -> tuple[int, int]:
        """The first and the last start, in microseconds, of windows that are closed at the lower
        of two watermarks, and not removed at the higher one."""
        last = low - self.lengths.most
        if not self.kept:  # a closed window is removed at once, or is never
            return MIN_TIME, last
        return high - self.lengths.least - self.kept, last


@dataclass(frozen=True)
class PipelinePlace:
    """A pipeline or savepoint at the moment of a snapshot."""

    name: str
    steps: Mapping[str, StepMark]
    positions: Mapping[tuple[str, str], tuple[Any, ...]]
    """By injector and partition."""
    origin: str | None
    """The pipeline or savepoint that it was copied from."""
    commits: str | None
    """The last commit of each interval, with its logical time; None: there is none."""
    has_pending: bool
    on_spark: int | None
    """The low watermark of the query that runs it on Spark."""
    nodes: Mapping[str, Mapping[str, Any]]
    """Descriptions in the stored graph (`millwheel.graph.node.Node.describe`)."""

    @property
    def family(self) -> set[str]:
        """The pipelines that it is, and that it comes from."""
        return {name.partition("@")[0] for name in (self.name, self.origin or self.name)}

    @property
    def is_complete(self) -> bool:
        marks = self.steps.values()
        return bool(marks) and not self.has_pending and all(
            mark.low_watermark is not None and mark.low_watermark >= MAX_TIME for mark in marks
        )  # fmt: skip

    def low_watermark(self, steps: Collection[str]) -> int:
        """The least of some steps, in microseconds."""
        if self.on_spark is not None:
            return self.on_spark
        marks = [self.steps[step].low_watermark for step in steps if step in self.steps]
        return min((MIN_TIME if mark is None else mark for mark in marks), default=MIN_TIME)

    def writers(self, table: str) -> list[str]:
        """The steps that write a table; all steps, if the graph does not name any."""
        found = [
            name
            for name, node in self.nodes.items()
            if any(sink.get("table") == table for sinks in _sinks(node) for sink in sinks)
        ]
        return found or list(self.steps)

    def windows_before(self, table: str) -> int | None:
        """Microseconds that all windows before a table last together, at most; None: not known."""
        rules = [
            rule
            for name in self._with_upstream(self.writers(table))
            if (rule := _windows(self.nodes.get(name, {}))) is not None
        ]
        lengths = [lengths_of(rule) for rule in rules]
        known = [length.most for length in lengths if length is not None]
        return sum(known) if len(known) == len(lengths) else None

    def window_entries(self, step: str) -> WindowEntries | None:
        """The entries of a `Windowed` with fixed windows; None: it is another step."""
        node = self.nodes.get(step, {})
        rule = node.get("state_rules", {}).get("windows")
        lengths = lengths_of(rule) if rule is not None and node["class"] == "Windowed" else None
        if lengths is None:
            return None
        rules = node.get("rules", {})
        allowed = rules.get("allowed_lateness")
        if allowed is not None:
            return WindowEntries(lengths, round(duration_of(allowed).total_seconds() * ONE_SECOND))
        return WindowEntries(lengths, None if rules.get("late") == "amend" else 0)

    def _with_upstream(self, names: Collection[str]) -> set[str]:
        writers: dict[str, list[str]] = {}
        for name, node in self.nodes.items():
            for stream in node.get("writes", ()):
                writers.setdefault(stream, []).append(name)
        found, left = set(names), list(names)
        while left:
            for stream, *_ in self.nodes.get(left.pop(), {}).get("inputs", ()):
                new = set(writers.get(stream, ())) - found
                found |= new
                left += new
        return found


def _sinks(node: Mapping[str, Any]) -> Iterator[list[dict[str, Any]]]:
    yield from node.get("sinks", {}).values()


def _windows(node: Mapping[str, Any]) -> str | None:
    for rules in ("state_rules", "rules"):
        found: str | None = node.get(rules, {}).get("windows")
        if found is not None:
            return found
    return None


def place_of(connection: psycopg.Connection[Any], pipeline: str) -> PipelinePlace:
    statements = Statements(pipeline)

    def rows(name: str, **views: str) -> list[tuple[Any, ...]]:
        return connection.execute(statements.get(name, **views), prepare=False).fetchall()

    latest = {"latest_commits": "latest_commits"}
    spark = rows("spark_mark")
    moments = rows("stored_moment", **latest)
    origin, commits = moments[0] if moments else (None, None)
    return PipelinePlace(
        pipeline,
        {name: StepMark(kind, *rest) for name, kind, *rest in rows("stored_marks", **latest)},
        {(name, source): tuple(rest) for name, source, *rest in rows("stored_positions", **latest)},
        origin,
        commits,
        rows("has_pending", pending_productions="pending_productions")[0][0],
        spark[0][0] if spark else None,
        stored_nodes(connection, pipeline),
    )


def are_copies(a: PipelinePlace, b: PipelinePlace) -> bool:
    """Whether one is a copy of the other, or both are copies of one pipeline, and neither has
    committed since."""
    are_related = not a.family.isdisjoint(b.family)
    return are_related and a.commits is not None and a.commits == b.commits


def same_place(a: PipelinePlace, b: PipelinePlace) -> tuple[bool, str]:
    """Whether two pipelines have processed the same input, and the reason in words."""
    if a.is_complete and b.is_complete:
        return True, "both are complete"
    if not (a.steps or b.steps):
        return True, "neither has begun"
    if are_copies(a, b):
        return True, "one is a copy of the other, and neither has committed since"
    if a.on_spark is not None or b.on_spark is not None:
        return False, "a pipeline on Spark has its place in Spark"
    for name in sorted(a.steps.keys() & b.steps.keys()):
        mark, other = a.steps[name], b.steps[name]
        if mark[2:] != other[2:]:
            return False, (
                f"the low watermark of {name} is {_text(mark)} in {a.name}, and {_text(other)} in "
                f"{b.name}"
            )
    if a.positions != b.positions:
        partitions = sorted({*a.positions, *b.positions})
        injector, partition = next(
            place for place in partitions if a.positions.get(place) != b.positions.get(place)
        )
        return False, f"partition {partition} of {injector} is not read equally far"
    for place in (a, b):
        if place.has_pending:
            return False, f"records of {place.name} are on their way"
    return True, "their sources are read equally far, and no record is on its way"


def _text(mark: StepMark) -> str:
    return time_text(MIN_TIME if mark.low_watermark is None else mark.low_watermark)
