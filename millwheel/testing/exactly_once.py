"""Run the same inputs in many modes, with crashes and takeovers, and compare the outputs."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from millwheel.core.clock import VirtualClock
from millwheel.errors import Fenced
from millwheel.pipeline import Pipeline
from millwheel.runtime.engine import Engine
from millwheel.runtime.environment import Options
from millwheel.runtime.process.load import FREE_OF_CHARGE
from millwheel.settings import Settings
from millwheel.store.memory import MemoryStore
from millwheel.streams import Stream
from millwheel.testing.determinism import twice
from millwheel.testing.harness import quick
from millwheel.testing.harness_sources import HarnessPipeline, capture_table
from millwheel.testing.letter_texts import format_dead_letters
from millwheel.testing.script import ScriptStep

MAX_CRASHES = 40

Letters = Literal["unexpected", "expected"]

Outputs = dict[str, Counter[str]]


class Crash(BaseException):
    """The end of the process, from the engine's point of view."""


@dataclass(frozen=True)
class TrialMode:
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
    inputs: Sequence[ScriptStep[Any]],
    expected: Mapping[Stream[Any], Sequence[Any]],
    *,
    max_crashes: int = MAX_CRASHES,
    before_each: Callable[[], object] | None = None,
    after_each: Callable[[], object] | None = None,
    database: str | None = None,
    dead_letters: Letters = "unexpected",
) -> None:
    """Run `inputs` in every mode, and check that each stream gets the expected values exactly once.

    ```python
    pipeline.add(AddUp(), ORDERS.by(customer))
    inputs = [inject(ORDERS, TEA), inject(ORDERS, MILK)]
    await assert_exactly_once(pipeline, inputs, expected={SPENT: [300, 390]})
    ```

    Modes: coalesced bundles; record by record; every record injected twice; a crash before each
    commit; a crash after each commit but before its ACKs and sends; a second engine that takes over
    at each commit while the first still believes it owns the intervals. Weak code is called twice
    on each record, as in `Harness`, and also without state if it declares that its state makes no
    difference.

    Args:
        inputs: steps made by `inject` and `advance`.
        expected: all values of each stream, in any order.
        max_crashes: maximum number of commits at which faults are injected, spread evenly.
        before_each: called before each run, to reset state outside of the store (for
            `Computation.process_bundle`).
        after_each: called after each run, to check that state.
        database: URL of a Postgres in which the statements of `Context.execute` run, as in
            `Harness`. Reset your tables in `before_each`, and compare them in `after_each`.
        dead_letters: ``"expected"``: dead letters are not a failure.

    Raises:
        AssertionError: a run differs. The message has the mode, the crash point, and the missing
            and extra values, or the first dead letters with their tracebacks.
        NotTheSameAgain: weak code produced different outputs for the same record.
    """
    await _run_all_modes(
        pipeline,
        inputs,
        expected,
        _both,
        max_crashes,
        dead_letters,
        before_each,
        after_each,
        database,
    )


async def assert_at_least_once(
    pipeline: Pipeline,
    inputs: Sequence[ScriptStep[Any]],
    expected: Mapping[Stream[Any], Sequence[Any]],
    *,
    max_crashes: int = MAX_CRASHES,
    dead_letters: Letters = "unexpected",
) -> None:
    """Like `assert_exactly_once`, for computations added with ``exactly_once=False``.

    ```python
    pipeline.add(AddUp(), ORDERS.by(customer), exactly_once=False)
    await assert_at_least_once(pipeline, [inject(ORDERS, TEA)], expected={SPENT: [300]})
    ```

    Every expected value must be produced; additional ones are allowed.
    """
    await _run_all_modes(pipeline, inputs, expected, _missing, max_crashes, dead_letters)


async def assert_at_most_once(
    pipeline: Pipeline,
    inputs: Sequence[ScriptStep[Any]],
    expected: Mapping[Stream[Any], Sequence[Any]],
    *,
    max_crashes: int = MAX_CRASHES,
    dead_letters: Letters = "unexpected",
) -> None:
    """Like `assert_exactly_once`, for computations added with ``delivery="at_most_once"``.

    ```python
    pipeline.add(AddUp(), ORDERS.by(customer), delivery="at_most_once")
    await assert_at_most_once(pipeline, [inject(ORDERS, TEA)], expected={SPENT: [300]})
    ```

    No value may be produced that is not expected, or more often. In runs without faults no value
    may be missing.
    """
    await _run_all_modes(pipeline, inputs, expected, _too_much, max_crashes, dead_letters)


Difference = tuple[Counter[str], Counter[str]]


def _both(difference: Difference, *, faults: bool) -> Difference:
    return difference


def _missing(difference: Difference, *, faults: bool) -> Difference:
    return difference[0], Counter()


def _too_much(difference: Difference, *, faults: bool) -> Difference:
    return Counter() if faults else difference[0], difference[1]


class _Judge(Protocol):
    """Returns the part of a difference that is a failure, for a run with or without faults."""

    def __call__(self, difference: Difference, *, faults: bool) -> Difference: ...


async def _run_all_modes(
    pipeline: Pipeline,
    inputs: Sequence[ScriptStep[Any]],
    expected: Mapping[Stream[Any], Sequence[Any]],
    judge: _Judge,
    max_crashes: int,
    dead_letters: Letters,
    before_each: Callable[[], object] | None = None,
    after_each: Callable[[], object] | None = None,
    database: str | None = None,
) -> None:
    streams = list(expected)
    wanted = {s.name: Counter(_spelled(s, value) for value in expected[s]) for s in streams}

    async def check(
        label: str, trial: Trial, *, faults: bool = True, at: dict[str, int] | None = None
    ) -> None:
        if before_each is not None:
            before_each()
        found = await trial.run(**(at or {}))
        if dead_letters == "unexpected" and trial.letters:
            raise AssertionError(f"{label}: {trial.letters}")
        if after_each is not None:
            try:
                after_each()
            except AssertionError as error:
                raise AssertionError(f"{label}: {error}") from error
        for name, values in wanted.items():
            difference = values - found[name], found[name] - values
            missing, extra = judge(difference, faults=faults)
            if missing or extra:
                raise AssertionError(
                    f"{label}: stream {name!r} differs\n  "
                    f"missing: {sorted(missing.elements())}\n  extra: {sorted(extra.elements())}"
                )

    for mode in (
        TrialMode("coalesced", _coalesced),
        TrialMode("record by record", _one_by_one),
        TrialMode("each record twice", _coalesced, copies=2),
    ):
        trial = Trial(pipeline, inputs, streams, mode, database)
        await check(mode.name, trial, faults=False)
    mode = TrialMode("small bundles", _few)
    if before_each is not None:
        before_each()
    commits = await Trial(pipeline, inputs, streams, mode, database).count_commits()
    step = max(1, commits // max_crashes)
    for point in range(0, commits, step):
        for label, fault in (
            (f"crash before commit {point}", "crash_before"),
            (f"crash after commit {point}, before its ACKs", "crash_after"),
            (f"takeover at commit {point}", "take_over"),
        ):
            await check(label, Trial(pipeline, inputs, streams, mode, database), at={fault: point})


def _spelled(stream: Stream[Any], value: Any) -> str:
    encoded = stream.codec.encode(value)
    stream.codec.check(encoded, value)
    return _normal(stream, encoded)


class Trial:
    """One run of the inputs in one mode, on a fresh store."""

    def __init__(
        self,
        pipeline: Pipeline,
        inputs: Sequence[ScriptStep[Any]],
        streams: Sequence[Stream[Any]],
        mode: TrialMode,
        database: str | None = None,
    ) -> None:
        self._mode = mode
        self._clock = VirtualClock()
        self._streams = streams
        self._store = MemoryStore(pipeline.name, clock=self._clock, database=database)
        settings = mode.settings(quick(pipeline.settings))
        self._copy = HarnessPipeline(pipeline, inputs, streams, settings, self._clock)
        self._commits = 0

    @property
    def letters(self) -> str:
        """The dead letters of the run as text; empty if there are none."""
        letters = self._store.dead_letters
        return format_dead_letters(letters, self._newest.exchange.steps) if letters else ""

    def _engine(self, *, take_over: bool = False) -> Engine:
        self._newest = Engine(
            self._copy.pipeline,
            self._store,
            clock=self._clock,
            options=Options(
                inject_copies=self._mode.copies,
                guard_shared=True,
                compare_stored=True,
                wrap_weak=twice,
                least_level=logging.ERROR,  # the planned faults are warnings
            ),
            take_over=take_over,
            process=FREE_OF_CHARGE,
        )
        return self._newest

    async def count_commits(self) -> int:
        await self.run()
        return self._commits

    async def run(
        self,
        *,
        crash_before: int | None = None,
        crash_after: int | None = None,
        take_over: int | None = None,
    ) -> Outputs:
        """Run to the end, with a fault at the given commit, and return the outputs."""
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
    """Normalize an encoded value, so that 5 and 5.0 are equal for a float."""
    return stream.codec.encode(stream.codec.decode(encoded)).decode()
