"""One test, many modes: the same inputs, however they are bundled, repeated or cut off."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from millwheel.clock import VirtualClock
from millwheel.errors import Fenced
from millwheel.pipeline import Pipeline
from millwheel.runtime.engine import Engine
from millwheel.runtime.process.load import FREE_OF_CHARGE
from millwheel.settings import Settings
from millwheel.store.memory import MemoryStore
from millwheel.streams import Stream
from millwheel.testing.harness import quick
from millwheel.testing.letters import in_words
from millwheel.testing.rig import Rig, capture_table
from millwheel.testing.script import Step

MAX_CRASHES = 40
"""Crash points tried per mode; a longer run is cut at points spread evenly."""

Letters = Literal["unexpected", "expected"]

Outputs = dict[str, Counter[str]]


class Crash(BaseException):
    """The process ends here, as far as the engine is concerned."""


@dataclass(frozen=True)
class Mode:
    """A way to run the inputs."""

    name: str
    settings: Callable[[Settings], Settings]
    copies: int = 1


def _coalesced(settings: Settings) -> Settings:
    return settings


def _one_by_one(settings: Settings) -> Settings:
    return replace(settings, chunk_records=1, bundle_records=1, max_unacked_records=1)


def _few(settings: Settings) -> Settings:
    return replace(settings, chunk_records=2, bundle_records=3, max_unacked_records=6)


async def assert_exactly_once(
    pipeline: Pipeline,
    inputs: Sequence[Step[Any]],
    expected: Mapping[Stream[Any], Sequence[Any]],
    *,
    max_crashes: int = MAX_CRASHES,
    before_each: Callable[[], object] | None = None,
    after_each: Callable[[], object] | None = None,
    dead_letters: Letters = "unexpected",
) -> None:
    """Run `inputs` in every mode, and see that each stream gets the expected values, once.

    Modes: coalesced bundles; record by record; every record injected twice; a crash
    before each commit; a crash after each commit but before its ACKs and sends; a second
    engine that takes over at each commit while the first still believes it owns the
    intervals. Productions are as the pipeline says, strong or weak; the code of weak
    computations is called twice on each record, and has to produce the same; with state that
    makes no difference, as they declare, also on a key that nothing is kept of.

    Args:
        inputs: made by `inject` and `advance`.
        expected: per stream all values, in any order.
        before_each: called before each run, to empty what is outside of the store (for
            `Computation.process_bundle`).
        after_each: called after each run, to see what is there now.
        dead_letters: ``"expected"``: it is no failure if records or rows are given up on.

    Raises:
        AssertionError: naming the mode, the crash point, and what is missing or too much, or the
            first dead letters with their tracebacks.
        NotTheSameAgain: weak code did not do the same again.
    """
    await _try_every_way(
        pipeline, inputs, expected, _both, max_crashes, dead_letters, before_each, after_each
    )


async def assert_at_least_once(
    pipeline: Pipeline,
    inputs: Sequence[Step[Any]],
    expected: Mapping[Stream[Any], Sequence[Any]],
    *,
    max_crashes: int = MAX_CRASHES,
    dead_letters: Letters = "unexpected",
) -> None:
    """Like `assert_exactly_once`, for computations added with ``exactly_once=False``: every
    expected value must come, and more may."""
    await _try_every_way(pipeline, inputs, expected, _missing, max_crashes, dead_letters)


async def assert_at_most_once(
    pipeline: Pipeline,
    inputs: Sequence[Step[Any]],
    expected: Mapping[Stream[Any], Sequence[Any]],
    *,
    max_crashes: int = MAX_CRASHES,
    dead_letters: Letters = "unexpected",
) -> None:
    """Like `assert_exactly_once`, for computations added with ``delivery="at_most_once"``: no value
    may come that is not expected, none more often, and without a fault none is missing."""
    await _try_every_way(pipeline, inputs, expected, _too_much, max_crashes, dead_letters)


Difference = tuple[Counter[str], Counter[str]]
"""Of a stream, what is missing and what is too much."""


def _both(difference: Difference, *, faults: bool) -> Difference:
    return difference


def _missing(difference: Difference, *, faults: bool) -> Difference:
    return difference[0], Counter()


def _too_much(difference: Difference, *, faults: bool) -> Difference:
    return Counter() if faults else difference[0], difference[1]


class _Judge(Protocol):
    """What of a difference counts, after a run with or without faults."""

    def __call__(self, difference: Difference, *, faults: bool) -> Difference: ...


async def _try_every_way(
    pipeline: Pipeline,
    inputs: Sequence[Step[Any]],
    expected: Mapping[Stream[Any], Sequence[Any]],
    judge: _Judge,
    max_crashes: int,
    dead_letters: Letters,
    before_each: Callable[[], object] | None = None,
    after_each: Callable[[], object] | None = None,
) -> None:
    streams = list(expected)
    wanted = {s.name: Counter(_spelled(s, value) for value in expected[s]) for s in streams}

    async def check(
        what: str, trial: Trial, *, faults: bool = True, at: dict[str, int] | None = None
    ) -> None:
        if before_each is not None:
            before_each()
        found = await trial.run(**(at or {}))
        if dead_letters == "unexpected" and trial.letters:
            raise AssertionError(f"{what}: {trial.letters}")
        if after_each is not None:
            try:
                after_each()
            except AssertionError as error:
                raise AssertionError(f"{what}: {error}") from error
        for name, values in wanted.items():
            difference = values - found[name], found[name] - values
            missing, extra = judge(difference, faults=faults)
            if missing or extra:
                raise AssertionError(
                    f"{what}: stream {name!r} differs\n"
                    f"  missing: {sorted(missing.elements())}\n  too much: {sorted(extra.elements())}"
                )

    for mode in (
        Mode("coalesced", _coalesced),
        Mode("record by record", _one_by_one),
        Mode("each record twice", _coalesced, copies=2),
    ):
        trial = Trial(pipeline, inputs, streams, mode)
        await check(mode.name, trial, faults=False)
    mode = Mode("small bundles", _few)
    if before_each is not None:
        before_each()
    commits = await Trial(pipeline, inputs, streams, mode).count_commits()
    step = max(1, commits // max_crashes)
    for point in range(0, commits, step):
        for what, fault in (
            (f"crash before commit {point}", "crash_before"),
            (f"crash after commit {point}, before its ACKs", "crash_after"),
            (f"takeover at commit {point}", "take_over"),
        ):
            await check(what, Trial(pipeline, inputs, streams, mode), at={fault: point})


def _spelled(stream: Stream[Any], value: Any) -> str:
    encoded = stream.codec.encode(value)
    stream.codec.check(encoded, value)
    return _normal(stream, encoded)


class Trial:
    """One run of the inputs in one mode, on a fresh store."""

    def __init__(
        self,
        pipeline: Pipeline,
        inputs: Sequence[Step[Any]],
        streams: Sequence[Stream[Any]],
        mode: Mode,
    ) -> None:
        self._mode = mode
        self._clock = VirtualClock()
        self._streams = streams
        self._store = MemoryStore(pipeline.name, clock=self._clock)
        settings = mode.settings(quick(pipeline.settings))
        self._rig = Rig(pipeline, inputs, streams, settings)
        self._commits = 0

    @property
    def letters(self) -> str:
        """The dead letters of the run in words; empty if there are none."""
        letters = self._store.dead_letters
        return in_words(letters, self._newest.steps) if letters else ""

    def _engine(self, *, take_over: bool = False) -> Engine:
        self._newest = Engine(
            self._rig.pipeline,
            self._store,
            clock=self._clock,
            inject_copies=self._mode.copies,
            guard_shared=True,
            run_weak_twice=True,
            take_over=take_over,
            process=FREE_OF_CHARGE,
        )
        return self._newest

    async def count_commits(self) -> int:
        """How many commits a run without faults makes."""
        await self.run()
        return self._commits

    async def run(
        self,
        *,
        crash_before: int | None = None,
        crash_after: int | None = None,
        take_over: int | None = None,
    ) -> Outputs:
        """Run to the end, through the given fault at the given commit."""
        engine = self._engine()
        reached = asyncio.Event()

        async def before(commit: Any) -> None:
            number = self._commits
            self._commits += 1
            if number == crash_before:
                reached.set()
                await asyncio.Event().wait()
            if number == take_over:
                reached.set()

        async def after(commit: Any) -> None:
            if self._commits - 1 == crash_after:
                reached.set()
                await asyncio.Event().wait()

        self._store.faults.before_commit = before
        self._store.faults.after_commit = after
        await engine.start()
        await self._until_done_or(engine, reached)
        if reached.is_set():
            self._store.faults.before_commit = None
            self._store.faults.after_commit = None
            if take_over is None:
                await engine.kill()
                await self._finish(self._engine(take_over=True))
            else:
                await self._hand_over(engine)
        else:
            await engine.stop()
        return self._outputs()

    async def _until_done_or(self, engine: Engine, reached: asyncio.Event) -> None:
        await engine.run(stop=reached)

    async def _finish(self, engine: Engine) -> None:
        await engine.start()
        await engine.run()
        await engine.stop()

    async def _hand_over(self, first: Engine) -> None:
        """A second engine claims everything while the first goes on as if nothing had happened."""
        second = self._engine(take_over=True)
        await second.start()
        try:
            await asyncio.gather(self._run_fenced(first), second.run())
        finally:
            await second.stop()

    async def _run_fenced(self, engine: Engine) -> None:
        try:
            await engine.run()
        except Fenced:
            pass
        finally:
            await engine.kill()

    def _outputs(self) -> Outputs:
        return {
            stream.name: Counter(
                _normal(stream, row[0].encode())
                for row in self._store.rows(capture_table(stream).name)
            )
            for stream in self._streams
        }


def _normal(stream: Stream[Any], encoded: bytes) -> str:
    """The one spelling of a value: where the type says float, 5 and 5.0 are the same."""
    return stream.codec.encode(stream.codec.decode(encoded)).decode()
