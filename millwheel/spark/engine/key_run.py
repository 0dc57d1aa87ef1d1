"""The records and timers of one key in one batch: runs user code, and collects its effects.

A batch has one watermark for all levels. The order at a level:

=======  =======================================================================
level 1  the timers that are due, then the records: as an interval of the engine
above    records on time, then the timers that are due, then late records
=======  =======================================================================

Above level 1, a production of a sender's timer in this batch is older than the watermark, but not
late. Such records see the watermark at their own time. Then the level fires its timers; a record
that was late for its sender is late here too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from sys import getrefcount
from typing import Any

from millwheel.context import end_context
from millwheel.core.codec import KEY_CHARACTERS, decode_key, shown, slot_of
from millwheel.core.counters import DEAD_LETTERS, DUPLICATES_DROPPED, PROCESSED
from millwheel.core.effects import Effects
from millwheel.core.model import MAX_TIME, Delivery, Firing, Key, Timer
from millwheel.errors import SparkRefused, UserCodeError
from millwheel.graph.node import Node
from millwheel.runtime.interval.giving_up import give_up
from millwheel.runtime.interval.step import Step
from millwheel.runtime.keys.key_state import KeyState, StateCache
from millwheel.runtime.process.tasks import is_ours
from millwheel.runtime.running.attempts import attempt
from millwheel.runtime.running.step_code import StepCode
from millwheel.spark.engine.refusals import EXECUTE, HOLD, WALL
from millwheel.spark.engine.stream_rows import StreamRow

Timers = dict[str, int]
"""Tag -> due, in microseconds."""

Entry = tuple[str, bytes, int]
"""Name, encoded value and state version of an entry."""


@dataclass(frozen=True)
class Moment:
    """The times of a batch, in microseconds."""

    watermark: int
    now: int


@dataclass
class Outcome:
    effects: Effects = field(default_factory=Effects)
    changes: dict[str, bytes | None] = field(default_factory=dict)
    """None: the entry is removed."""
    timers: Timers = field(default_factory=dict)
    place: int | None = None
    """The place of everything that was made, among the rows of the task; None: after all that it
    has made so far."""


class KeyEntries:
    """The entries of the key that runs: name -> encoded value and state version."""

    def __init__(self) -> None:
        self.of: Mapping[str, tuple[bytes, int]] = {}

    def load(self, entry: str) -> Entry | None:
        found = self.of.get(entry)
        return None if found is None else (entry, *found)

    def between(self, after: str, before: str) -> Iterator[Entry]:
        """The entries with names between two, both exclusive, in order."""
        for entry in sorted(name for name in self.of if after < name < before):
            yield (entry, *self.of[entry])


class StepRunner:
    """Runs the keys of one step in one task.

    Args:
        entries: those of the present key.
        is_first: whether the step is of level 1.
    """

    def __init__(self, step: Step, entries: KeyEntries, *, is_first: bool) -> None:
        node = step.node
        assert node.layout is not None
        assert node.computation is not None
        self.step = step
        self.is_first = is_first
        self.keeps = not node.layout.stateless or node.named or _has_timers(node)
        """Whether anything is kept of a key."""
        self._code = StepCode(step, Effects())
        self._entries = entries
        self._layout = node.layout
        self._states = StateCache(
            node.layout,
            what=f"the state of {step.name!r}",
            version=step.version,
            migrations=node.state_steps,
            entry_migrations=node.entry_steps,
            fetch_entry=self._fetch,
            scan_entries=self._scan,
        )

    async def run(
        self, key_text: bytes, rows: Sequence[StreamRow], timers: Mapping[str, int], moment: Moment
    ) -> Outcome:
        """Run the records of a key, in the order of their places, and its timers that are due.

        Raises:
            UserCodeError: user code failed, and its computation has ``on_error="fail"``.
            SparkRefused: user code used a part of `Context` that Spark does not have.
        """
        try:
            return await self._run(key_text, rows, timers, moment, careful=False)
        except BaseException as error:
            self._end_code()
            if is_ours(error) or isinstance(error, SparkRefused):
                raise
        try:
            return await self._run(key_text, rows, timers, moment, careful=True)
        finally:
            self._end_code()

    async def _run(
        self,
        key_text: bytes,
        rows: Sequence[StreamRow],
        timers: Mapping[str, int],
        moment: Moment,
        *,
        careful: bool,
    ) -> Outcome:
        state, context = self._state(key_text), self._code.context
        held = getrefcount(context)
        run = KeyRun(self._code, state, timers, moment, careful=careful)
        await self._all(run, self._deliveries(state, rows), moment.watermark)
        done = run.outcome()
        if getrefcount(context) != held:  # the call has left a task behind, which gets an error
            self._end_code()
        return done

    def _end_code(self) -> None:
        end_context(self._code.context, _late_use)
        self._code = StepCode(self.step, Effects())

    async def _all(
        self, run: KeyRun, items: Sequence[tuple[Delivery[Any], bool]], watermark: int
    ) -> None:
        waiting = [item for item, _ in items]
        if not self.is_first:
            await run.on_time([item for item, late in items if not late], watermark)
            waiting = [item for item, late in items if late]
        await run.fire(watermark)
        if self.is_first and run.may_group(waiting):
            await run.group(waiting, watermark)
            await run.fire(watermark)
            return
        for item in waiting:
            await run.record(item, watermark)
            await run.fire(watermark)

    def _state(self, key_text: bytes) -> KeyState:
        state = KeyState(self._states, decode_key(key_text), key_text, slot_of(key_text))
        if self._layout.stateless:
            state.fill([], complete=True)
        else:
            plain = self._entries.load("")
            state.fill([] if plain is None else [plain], complete=False)
        return state

    def _deliveries(
        self, state: KeyState, rows: Iterable[StreamRow]
    ) -> list[tuple[Delivery[Any], bool]]:
        """The records of rows with whether they are late, in the order in which their senders made
        them."""
        found = []
        codecs, id_ = self.step.codecs, self.step.id
        for row in sorted(rows, key=_place):
            item: Delivery[Any] = Delivery(
                state.key, codecs[row.stream].decode(row.value), row.micros, row.stream,
                state.key_text, state.slot,
                id_, row.micros, len(row.value), row.value, 0, row.seq,
            )  # fmt: skip
            found.append((item, row.late))
        return found

    async def _fetch(self, state: KeyState, entry: str) -> tuple[bytes, int] | None:
        found = self._entries.load(entry)
        return None if found is None else found[1:]

    async def _scan(self, state: KeyState, after: str, before: str, limit: int) -> list[Entry]:
        return list(islice(self._entries.between(after, before), limit))


class IdRunner(StepRunner):
    """Runs a relay that drops records with user-supplied ids that it has seen; an id is its key.

    A task runs ids in an order of its own. So a record keeps the place that its source gave it,
    and the records of a key reach the readers in the order of the source.

    The engine remembers ids for a time by the clock; here it is event time, the only time that an
    operator has.
    """

    FORGET = "forget"

    def __init__(self, *args: Any, retention_seconds: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self._retention = int(retention_seconds * 1e6)

    async def run(
        self, key_text: bytes, rows: Sequence[StreamRow], timers: Mapping[str, int], moment: Moment
    ) -> Outcome:
        due = timers.get(self.FORGET)
        is_known = due is not None and due >= moment.watermark
        new = [] if is_known else sorted(rows, key=_place)[:1]
        done = await super().run(key_text, new, {}, moment)
        if len(rows) > len(new):
            done.effects.count(DUPLICATES_DROPPED, len(rows) - len(new))
        if new:
            done.place = new[0].seq
            done.timers[self.FORGET] = min(new[0].micros + self._retention, MAX_TIME - 1)
        elif is_known and due is not None:
            done.timers[self.FORGET] = due
        return done


class KeyRun:
    """The run of one key.

    Args:
        code: the step's; its effects are empty.
        careful: capture the state after each item, so that one that fails can be set aside. Without
            it, an error ends the run, which then has to be done again.
    """

    def __init__(
        self,
        code: StepCode,
        state: KeyState,
        timers: Mapping[str, int],
        moment: Moment,
        *,
        careful: bool,
    ) -> None:
        self._code = code
        self._step = step = code.step
        self._state = state
        self._moment = moment
        self._careful = careful
        assert step.node.layout is not None
        self._settles = not step.node.layout.has_fidelity
        self._done = Outcome(timers=dict(timers))
        self._effects = code.effects

    def may_group(self, items: Sequence[Delivery[Any]]) -> bool:
        """Whether one call may process all records (decision 70)."""
        is_plain = not (self._careful or self._settles)
        return len(items) > 1 and is_plain and self._code.together is not None

    async def on_time(self, items: Sequence[Delivery[Any]], watermark: int) -> None:
        """Run records that see the watermark at their own time."""
        if self.may_group(items):
            await self.group(items, min(watermark, min(item.micros for item in items)))
            return
        for item in items:
            await self.record(item, min(watermark, item.micros))

    async def group(self, items: Sequence[Delivery[Any]], watermark: int) -> None:
        together = self._code.together
        assert together is not None
        self._open(min(item.micros for item in items), watermark, watermark)
        await together(items, self._code.context)
        self._take()
        self._done.effects.count(PROCESSED, len(items))

    async def record(self, item: Delivery[Any], watermark: int) -> None:
        self._open(item.micros, watermark, watermark)

        await self._item(item, lambda: self._code.process(item, self._code.context))
        self._done.effects.count(PROCESSED, 1)

    async def fire(self, watermark: int) -> None:
        """Run the timers that are due before a watermark, also those that they set."""
        while due := [(at, tag) for tag, at in self._done.timers.items() if at < watermark]:
            at, tag = min(due)
            del self._done.timers[tag]
            timer = Timer(tag, "watermark", at)
            self._open(at, watermark, min(at, watermark))
            state = self._state

            firing = Firing(state.key, state.key_text, state.slot, timer, at)
            await self._item(firing, partial(self._code.process_timer, timer))

    def outcome(self) -> Outcome:
        if not self._careful:
            self._capture()
        return self._done

    def _open(self, micros: int, watermark: int, promised: int) -> None:
        self._code.call.open(self._state, watermark, promised, self._moment.now)
        self._code.call.micros = micros

    async def _item(self, item: Delivery[Any] | Firing, work: Callable[[], Any]) -> None:
        if not self._careful:
            if self._settles:
                self._state.settle()
            await work()
            self._take()
            return
        before = dict(self._done.timers)

        async def once() -> None:
            if isinstance(item, Delivery):
                self._step.renew(item)
            await work()
            self._capture()
            self._take()

        def undo(error: BaseException) -> None:
            self._state.revert()
            self._effects.clear()
            self._done.timers = dict(before)
            if isinstance(error, SparkRefused):
                raise error

        given_up = await attempt(once, undo, self._step.node.retries)
        if given_up is not None:
            letter = give_up(self._step, item, *given_up, self._moment.now)
            self._done.effects.dead_letters += letter.dead_letters
            self._done.effects.count(DEAD_LETTERS, 1)

    def _capture(self) -> None:
        self._done.changes.update(self._state.capture(1))

    def _take(self) -> None:
        self._take_timers()
        promised = self._code.call.promised
        for chunks in self._effects.productions.of.values():
            for chunk in chunks:
                chunk.holds = [max(hold, promised) for hold in chunk.holds]
        self._done.effects.take(self._effects)

    def _take_timers(self) -> None:
        effects = self._effects
        for (_, kind, tag), found in effects.timers.items():
            if kind != "watermark":
                if found is not None:
                    raise self._refused(HOLD if kind == "hold" else WALL)
            elif found is None:
                self._done.timers.pop(tag, None)
            else:
                self._done.timers[tag] = found[0]
        effects.timers.clear()
        if effects.statements:
            raise self._refused(EXECUTE)

    def _refused(self, what: str) -> SparkRefused:
        key: Key = self._state.key
        return SparkRefused(
            f"{self._step.name!r} cannot run on Spark: with key {shown(key, KEY_CHARACTERS)} it "
            f"used {what}. Run this pipeline with the engine (millwheel run)"
        )


def _has_timers(node: Node) -> bool:
    return node.computation is not None and node.computation.defines("process_timer")


def _late_use(error: UserCodeError) -> None:
    """The error is raised where the context is used."""


def _place(row: StreamRow) -> tuple[int, str, bytes]:
    return row.seq, row.stream, row.value
