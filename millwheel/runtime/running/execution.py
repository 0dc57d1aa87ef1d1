"""Runs user code on the items of one key after the other, and on whole chunks.

The fast path uses one context for all items, and captures the state once at the end. If an item
raises, the key's state is reverted and the items run again one by one, with a capture after each,
which finds the failing item. It is retried as often as its computation allows, and then becomes a
dead letter or stops the engine. Code that cancels the task that it runs in ends this run too; the
items then run again *apart*, each in a separate task.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from sys import getrefcount
from typing import Any, cast

from millwheel.context import Context
from millwheel.core.chunk import Chunk
from millwheel.core.effects import Effects
from millwheel.core.model import Delivery, Firing, Record
from millwheel.runtime.environment import Wrap
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.key_requests import KeyRequest
from millwheel.runtime.interval.work import Item
from millwheel.runtime.keys.key_state import KeyState
from millwheel.runtime.keys.map_entries import Change
from millwheel.runtime.process.late_use import LateUses
from millwheel.runtime.process.tasks import in_own_task, is_ours, raise_ours
from millwheel.runtime.routes.routes import ChunkSender, address_all
from millwheel.runtime.running.attempts import attempt
from millwheel.runtime.running.chunk_stop import RAN, ChunkGroup, Stop, Waiting
from millwheel.runtime.running.firing import fire, fire_sooner
from millwheel.runtime.running.request_verbs import RequestTurn, carry_out
from millwheel.runtime.running.step_code import SharingCode, StepCode

Group = tuple[KeyState, list[Item]]
"""The state of a key, and the items to run, in order."""

Finish = Callable[[Interval, KeyState, list[Item], Effects, list[Change]], None]
"""Takes the effects and changes of state of a key's items; the effects are empty afterwards."""

Begun = tuple[int, Waiting]
"""The number of a key's items that have begun, and the call of the last of them."""


class Execution:
    """Runs items of one interval, key after key; its effects are taken after each key.

    Tasks do not share an execution: user code that waits keeps the execution it runs in.

    Args:
        late_uses: ends contexts that user code still holds after their call.
        apart: run each item in a separate task, so that it cannot cancel another one.
        carefully: run items one by one, since one of them has failed.
        wrap: puts code around the user code of weak computations (tests).
    """

    __slots__ = (
        "_alone", "_apart", "_chunk", "_code", "_held", "_interval", "_late_uses", "_place",
        "_settles", "effects", "group", "item", "ran",
    )  # fmt: skip

    def __init__(
        self,
        interval: Interval,
        late_uses: LateUses,
        *,
        apart: bool = False,
        carefully: bool = False,
        wrap: Wrap | None = None,
    ) -> None:
        step = interval.step
        layout = step.node.layout
        assert layout is not None
        self.effects = Effects()
        self.effects.keeper = interval.watermarks
        self._interval = interval
        self._late_uses = late_uses
        self._code = (
            StepCode(step, self.effects, wrap=wrap)
            if interval.tables is None
            else SharingCode(step, self.effects, interval.tables, wrap=wrap)
        )
        self._apart = apart
        tries_state = wrap is not None and step.node.is_weak and not layout.stateless
        self._alone = apart or carefully or tries_state
        """Whether items run one by one, so that the state before each is known."""
        self._settles = not layout.has_fidelity
        """Whether the state that a record leaves may differ from the one that a restart would
        read."""
        self._held: int
        """Number of references to a context that no user code has kept."""
        self.group: Group | None = None
        """The group that `run_all` is running, or has run last; None: other tasks have run all."""
        self.ran = 0
        """Number of items that have run one by one."""
        self.item: Item | None = None
        """The item that runs, or has run last; None: a chunk runs, or nothing has run yet."""
        self._chunk: Chunk | None = None
        self._place = 0
        """Place in the chunk of the record that runs."""

    def _renew_context(self) -> Context[Any, Any]:
        self._late_uses.end(self._code.renew())
        return self._code.context

    @property
    def running(self) -> Item | None:
        """The record, timer or request that user code runs on; may be read in another thread."""
        chunk = self._chunk
        return self.item if chunk is None else chunk.apart()[self._place]

    # -- a chunk ------------------------------------------------------------------------------

    def run_chunk(self, chunk: Chunk, groups: list[ChunkGroup], now: int) -> Stop | None:
        """Run the records of a chunk, key after key, until one waits or raises.

        Nothing else runs in that time, so all keys see the same times, and effects need no key of
        their own until the run stops.

        Raises:
            BaseException: an error of the engine (`is_ours`).
        """
        code, effects = self._code, self.effects
        context, call, process = code.context, code.call, code.process
        watermarks = self._interval.watermarks
        call.watermark, call.promised, call.now = watermarks.input, watermarks.promised, now
        stream, values, micros = chunk.stream, chunk.values, chunk.micros
        settles = self._settles
        together = None if settles else code.together
        effects.together = True
        self._chunk = chunk
        held = self._held = getrefcount(context)
        produced = effects.produced
        rows, statements, lines, letters, holds, counters = effects.others()
        done = start = 0
        mark = None
        try:
            for done, (state, places) in enumerate(groups):
                call.cell, key = state, state.key
                start, mark = len(produced), None
                if rows or statements or lines or letters or holds or counters:
                    mark = effects.mark()
                if together is not None and len(places) > 1:
                    call.micros = min(map(micros.__getitem__, places))
                    found = [Record(key, values[place], micros[place], stream) for place in places]
                    self._place = places[0]
                    running = together(found, context).__await__()
                    awaited = next(running, RAN)
                    if awaited is not RAN:
                        return Stop(done, start, mark, len(places), Waiting(running, awaited))
                    if getrefcount(context) != held:
                        context = self._renew_context()
                    continue
                for place in places:
                    self._place = place
                    if settles and place != places[0]:
                        state.settle()
                    call.micros = at = micros[place]
                    running = process(Record(key, values[place], at, stream), context).__await__()
                    awaited = next(running, RAN)
                    if awaited is not RAN:
                        begun = places.index(place) + 1
                        return Stop(done, start, mark, begun, Waiting(running, awaited))
                    if getrefcount(context) != held:
                        context = self._renew_context()
        except GeneratorExit:
            raise
        except BaseException as error:
            if is_ours(error):
                raise_ours(error)
            self._renew_context()
            return Stop(done, start, mark, 0, None)
        finally:
            effects.together = False
            self._chunk = None
        return None

    def pass_chunk(self, chunk: Chunk) -> bool:
        """Run the step's code on a chunk as it is; False: it has failed, without any effect."""
        step, effects = self._interval.step, self.effects
        assert step.chunk_code is not None

        self._chunk = chunk
        try:
            step.chunk_code.process_chunk(chunk, ChunkSender(step.routes, effects, chunk))
        except BaseException as error:
            effects.clear()
            if is_ours(error):
                raise_ours(error)
            return False
        finally:
            self._chunk = None
        return True

    # -- one key after the other -----------------------------------------------------------------

    async def run_all(
        self,
        groups: deque[Group],
        finish: Finish,
        clock: Callable[[], int],
        begun: Begun | None = None,
    ) -> None:
        """Run the items of key after key, with the items that arrive for a key while it runs.

        Each key sees the input watermark of its turn. The interval's promise may have risen since
        the records were taken, and a window that user code sees as open must not be closed
        downstream already.

        Args:
            groups: the groups that are left; other tasks may take from it while user code waits.
            clock: returns the wall time, in microseconds.
            begun: the items that the first key has begun already.

        Raises:
            UserCodeError: an item failed for good, and its computation has ``on_error="fail"``.
            CancelledError: the task was cancelled, by its owner or by user code; no item of `group`
                has had any effect.
        """
        interval, turns, backlog = self._interval, self._interval.turns, self._interval.backlog
        now = clock() if begun is None else self._code.call.now
        while groups:
            group: Group | None = groups.popleft()
            while group is not None:
                state, items = group
                if is_careful := state.key_text in turns.careful:
                    items = turns.begin(items)
                self.group = state, items
                watermark = interval.watermarks.input
                changes = None
                if not (is_careful or self._alone):
                    changes = await self._run_together(state, items, watermark, now, begun)
                    begun = None
                if changes is None:
                    changes = await self.run(state, items, watermark, now)
                finish(interval, state, items, self.effects, changes)
                group = None
                waiting = backlog.pop(state.key_text)
                if waiting is not None and (waiting := turns.admitted(waiting)):
                    backlog[state.key_text] = None
                    group = state, waiting
                    now = clock()

    async def _run_together(
        self, state: KeyState, items: list[Item], watermark: int, now: int, begun: Begun | None
    ) -> list[Change] | None:
        """Run a key's items with one capture at the end.

        Returns:
            The changes of state; None: an item has failed, and nothing has any effect.
        """
        code = self._code
        context, call = code.context, code.call
        held = self._held if begun is not None else getrefcount(context)
        code.begin(state)
        # `Call.open`, inlined.
        call.cell, call.now = state, now
        call.watermark, call.promised = watermark, self._interval.watermarks.promised
        left = items
        try:
            if begun is not None:
                left = await self._finish_begun(items, *begun)
                if getrefcount(context) != held:
                    context = self._renew_context()
            if begun is None and self._may_group(items):
                left = await self._run_group(items)
                if getrefcount(context) != held:
                    context = self._renew_context()
            for item in left:
                self.item = item
                if self._settles and item is not items[0]:
                    state.settle()
                if isinstance(item, Delivery):
                    call.micros = item.micros
                    await code.process(item, context)
                else:
                    await self._run_other(item, state)
                self.ran += 1
                if getrefcount(context) != held:
                    context = self._renew_context()
            code.check()
            return state.capture(self._interval.commits.n + 1)
        except GeneratorExit:
            raise
        except BaseException as error:
            state.revert()
            self.effects.clear()
            self._renew_context()
            if is_ours(error):
                raise_ours(error)
            return None

    def _may_group(self, items: list[Item]) -> bool:
        """Whether one call may process all items."""
        if self._code.together is None or self._settles or len(items) == 1:
            return False
        return all(isinstance(item, Delivery) for item in items)

    async def _run_group(self, items: list[Item]) -> list[Item]:
        """Run all items in one call; gives those that are left: none."""
        code, records = self._code, cast("list[Delivery[Any]]", items)
        assert code.together is not None
        self.item = records[0]
        code.call.micros = min(record.micros for record in records)
        await code.together(records, code.context)
        self.ran += len(records)
        return []

    async def _finish_begun(self, items: list[Item], begun: int, call: Waiting) -> list[Item]:
        self.item = items[begun - 1]
        await call
        self.ran += begun
        address_all(self.effects)  # of productions before it waited
        return items[begun:]

    async def _run_other(self, item: Firing | KeyRequest, state: KeyState) -> None:
        if isinstance(item, Firing):
            await fire_sooner(self._code, self._interval.timers, item)
            await fire(self._code, self._interval.timers, item)
        else:
            await self._carry_out(item, state)

    async def _carry_out(self, request: KeyRequest, state: KeyState) -> None:
        self._code.no_cause()
        await carry_out(RequestTurn(request, self._interval, state, self._code))

    # -- one item after the other ------------------------------------------------------------------

    async def run(
        self, state: KeyState, items: list[Item], watermark: int, now: int
    ) -> list[Change]:
        """Run one key's items, one by one; their effects are in `effects`.

        Raises:
            UserCodeError: as `run_all`.
            CancelledError: the task was cancelled, by its owner or by user code.
        """
        turns, code = self._interval.turns, self._code
        run = _Singly(state, watermark, now)
        run.total.keeper = self._interval.watermarks
        undo = partial(self._undo, run)
        has_failed = False
        for item in items:
            self.item = item
            if turns.stops(item, has_failed=has_failed):
                run.total.take(turns.step_aside(item, now, watermark, run.total))
                continue
            given_up = await attempt(partial(self._once, item, run), undo, code.step.node.retries)
            if given_up is None:
                run.total.take(self.effects)
            else:
                run.total.take(turns.failed(item, *given_up, now, watermark))
                has_failed |= turns.stops_key(item)
            self.ran += 1
        self.effects.take(run.total)
        return list(run.changes.items())

    async def _once(self, item: Item, run: _Singly) -> None:
        interval, code, state = self._interval, self._code, run.state
        watermark = interval.turns.watermark_of(item, run.watermark)
        code.call.open(state, watermark, interval.watermarks.promised, run.now)
        code.begin(state)
        try:
            if not isinstance(item, Firing) or interval.timers.still_due(item):
                interval.turns.refuse(item)
            call = self._call(item, run)
            await (in_own_task(call) if self._apart else call)
            code.check()
            n = interval.commits.n + 1
            if run.changes:  # while user code waited, a commit may have been built without them
                state.carry(list(run.changes.items()), n)
            run.changes.update(state.capture(n))
        finally:
            self._renew_context()

    def _call(self, item: Item, run: _Singly) -> Awaitable[None]:
        code = self._code
        if isinstance(item, Delivery):
            code.step.renew(item)
            code.call.micros = item.micros
            return code.process(item, code.context)
        self.effects.timers.update(run.total.timers)
        if isinstance(item, Firing):
            return fire(code, self._interval.timers, item)
        return self._carry_out(item, run.state)

    def _undo(self, run: _Singly, error: BaseException) -> None:
        run.state.revert()
        self.effects.clear()
        if is_ours(error):
            run.total.clear()


class _Singly:
    __slots__ = ("changes", "now", "state", "total", "watermark")

    def __init__(self, state: KeyState, watermark: int, now: int) -> None:
        self.state = state
        self.watermark = watermark
        self.now = now
        self.total = Effects()
        """The effects of the items that have run."""
        self.changes: dict[str, bytes | None] = {}
        """The entries of the state that they have changed."""
