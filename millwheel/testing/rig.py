"""A pipeline as a test runs it: sources replaced by scripts, streams captured."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from millwheel.errors import GraphError
from millwheel.pipeline import Pipeline
from millwheel.settings import Settings
from millwheel.sinks import Discard, SinkUse, Table
from millwheel.streams import Stream
from millwheel.testing.script import Script, Step

V = TypeVar("V")


class Captured(msgspec.Struct):
    """One value of a captured stream, as the JSON it is stored as."""

    json: str


def capture_table(stream: Stream[Any]) -> Table[Captured]:
    """The table that keeps every value of a stream."""
    return Table(f"captured_{stream.name}", Captured, numbered=True)


class Rig:
    """A copy of a pipeline with scripts for sources and the given streams captured.

    Sinks on files and the terminal are left out; tables stay. A stream is captured in the commit of
    whoever writes it; one that is written weakly in a step of its own, or weak productions would
    have to be stored for the test's sake.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        steps: Iterable[Step[Any]],
        captured: Iterable[Stream[Any]],
        settings: Settings,
    ) -> None:
        self.captured = list(captured)
        self.scripts: dict[str, Script] = {}
        self.pipeline = Pipeline(pipeline.name, settings=settings)
        for name, node in pipeline.nodes.items():
            copy = dataclasses.replace(node, sinks={})
            if node.bundles is not None:  # nothing waits for company: nobody moves the clock
                copy.bundles = dataclasses.replace(node.bundles, seconds=0.0)
            if node.injection is not None:
                script = Script(name)
                self.scripts.setdefault(node.injected, script)
                copy.injection = dataclasses.replace(node.injection, source=script)
            self.pipeline.nodes[name] = copy
        self.pipeline.sinks += [
            (stream, use)
            for stream, use in pipeline.sinks
            if isinstance(use.sink, (Table, Discard))
        ]
        weak = {s.name for node in pipeline.nodes.values() if node.is_weak for s in node.writes}
        for stream in self.captured:
            use = SinkUse(capture_table(stream), _row_of(stream), apart=stream.name in weak)
            self.pipeline.sinks.append((stream, use))
        for step in steps:
            self.append(step)

    def append(self, step: Step[Any]) -> None:
        """One more row for the script of its stream."""
        script = self.scripts.get(step.stream.name)
        if script is None:
            raise GraphError(
                f"nothing injects stream {step.stream.name!r} in pipeline {self.pipeline.name!r}; "
                f"a test can inject {', '.join(sorted(self.scripts)) or 'nothing'}"
            )
        script.append(step)


def _row_of(stream: Stream[V]) -> Callable[[V], Captured]:
    """What makes the row of a captured value, and refuses one that is not of the stream's type."""

    def row(value: V) -> Captured:
        encoded = stream.codec.encode(value)
        stream.codec.check(encoded, value)
        return Captured(encoded.decode())

    return row
