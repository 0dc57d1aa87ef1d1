"""Prepares a pipeline for tests: scripts replace its sources, and its streams are captured."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from millwheel.core.clock import Clock
from millwheel.core.suggestion import with_suggestion
from millwheel.errors import GraphError
from millwheel.pipeline import Pipeline
from millwheel.settings import Settings
from millwheel.sinks import Discard, SinkUse, Table
from millwheel.streams import Stream
from millwheel.testing.script import Script, ScriptStep

V = TypeVar("V")


class Captured(msgspec.Struct):
    json: str


def capture_table(stream: Stream[Any]) -> Table[Captured]:
    return Table(f"captured_{stream.name}", Captured, numbered=True)


class HarnessPipeline:
    """A copy of a pipeline with scripts as sources and tables that capture the given streams.

    Sinks to files and the terminal are removed; tables stay. A stream is captured in the commit
    that produces its values, one of weak productions by a separate step: otherwise the test would
    force them to be stored.

    Args:
        clock: gives the timestamps of values, where the source has them.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        steps: Iterable[ScriptStep[Any]],
        captured: Iterable[Stream[Any]],
        settings: Settings,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self.captured = list(captured)
        self._scripts: dict[str, list[Script]] = {}
        """By stream, one for each injector; the first takes the values."""
        self.pipeline = Pipeline(pipeline.name, settings=settings)
        for name, node in pipeline.nodes.items():
            copy = dataclasses.replace(node, sinks={})
            if node.bundles is not None:  # no waiting for full bundles: the clock does not advance
                copy.bundles = dataclasses.replace(node.bundles, seconds=0.0)
            if node.injection is not None:
                script = Script(name, timestamps=node.injection.timestamp is None)
                self._scripts.setdefault(node.injected, []).append(script)
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

    @property
    def scripts(self) -> list[Script]:
        return [script for scripts in self._scripts.values() for script in scripts]

    def append(self, step: ScriptStep[Any]) -> None:
        """Append a value to the first script of its stream, with a timestamp if its source gives
        them; a watermark to all scripts of the stream, as the least of theirs is the stream's.

        Raises:
            GraphError: the pipeline has no injector for the stream, or the injector computes the
                timestamp that the step gives.
            UserCodeError: the value is not of the stream's type.
        """
        stream = step.stream
        if stream.name not in self._scripts:
            known = sorted(self._scripts)
            message = (
                f"no injector of pipeline {self.pipeline.name!r} writes stream {stream.name!r}; a "
                f"test can inject {', '.join(known) or 'nothing'}"
            )
            raise GraphError(with_suggestion(message, stream.name, known))
        if step.watermark is not None:
            for script in self._scripts[stream.name]:
                script.append(step)
            return
        stream.codec.check(msgspec.json.encode(step.value), step.value)
        script = self._scripts[stream.name][0]
        if not script.timestamps and step.at is not None:
            raise GraphError(
                f"inject into {step.stream.name!r}: at= would have no effect, since the injector "
                f"of pipeline {self.pipeline.name!r} has timestamp=, which computes the time from "
                "the value"
            )
        if script.timestamps and step.at is None:
            step = dataclasses.replace(step, at=self._clock.now())
        script.append(step)


def _row_of(stream: Stream[V]) -> Callable[[V], Captured]:
    def row(value: V) -> Captured:
        encoded = stream.codec.encode(value)
        stream.codec.check(encoded, value)
        return Captured(encoded.decode())

    return row
