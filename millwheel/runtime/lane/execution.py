"""Runs user code on the items of one key.

The fast path uses one context for all items, and captures the state once at the end. If an item
raises, the key's state is reverted and the items run again one by one, with a capture after each.
So the failing item is found. It is retried as often as its computation allows, and then becomes a
dead letter or stops the engine. Code that cancels the task that it runs in ends this run too; the
items then run again *apart*, each in a separate task.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from sys import getrefcount
from typing import Any, NamedTuple

from millwheel.context import Context
from millwheel.core.chunk import Chunk
from millwheel.core.effects import Call, Effects, EffectsMark, TimerIdentity
from millwheel.core.model import Delivery, Firing, Record, Timer
from millwheel.errors import CannotCarryOut, CodeBlocked, SetAside
from millwheel.runtime.environment import Wrap
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.requests import KeyRequest
from millwheel.runtime.interval.work import Item
from millwheel.runtime.keys.broadcast_tables import BroadcastTable
from millwheel.runtime.keys.key_state import CapturedStates, KeyState, encode_all, record_all
from millwheel.runtime.keys.map_entries import Change
from millwheel.runtime.lane.parking import one_turn, set_aside, step_aside, watermark_of
from millwheel.runtime.lane.requests import RequestTurn, carry_out
from millwheel.runtime.lane.user_code import Process, context_of, lineage_of, process_of
from millwheel.runtime.process.late_use import LateUses
from millwheel.runtime.process.tasks import in_own_task, is_ours, raise_ours
from millwheel.runtime.routes.routes import address_all

Group = tuple[KeyState, list[Item]]
"""The state of a key, and the key's items to run, in order."""

ChunkGroup = tuple[KeyState, list[int]]
"""The state of a key, and the places of the key's records in a chunk, in order."""

_RAN: Any = object()
"""Stands for the end of a call."""

Finish = Callable[[Interval, KeyState, list[Item], Effects, list[Change]], None]
"""Takes the effects and changes of state of a key's items; the effects are empty afterwards."""

AT_ONCE = (CannotCarryOut, CodeBlocked, SetAside)
"""Errors after which an item is not tried again."""

SOONER_TIMERS = 256
"""Most timers that user code has just set and that fire at once, between two due timers of a
key."""


class Waiting:
    """A call of user code that waits for a future: awaiting it continues the call."""

    __slots__ = ("_awaited", "_call")

    def __init__(self, call: Generator[Any, Any, None], awaited: Any) -> None:
        self._call = call
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, None]:
        call, awaited = self._call, self._awaited
        while True:
            try:
                yield awaited
            except GeneratorExit:
                call.close()
                raise
            except BaseException as error:
                try:
                    awaited = call.throw(error)
                except StopIteration:
                    return
            else:
                awaited = next(call, _RAN)
                if awaited is _RAN:
                    return


Begun = tuple[int, Waiting]
"""The number of a key's items that have begun, and the call of the last of them."""


class Stop(NamedTuple):
    """Why and where the run of a chunk has stopped."""

    done: int
    """Number of keys before the one that stopped it."""
    productions: int
    """Number of productions of these keys."""
    mark: EffectsMark | None
    """The end of their other effects."""
    begun: int
    """Number of records of that key that have begun."""
    waiting: Waiting | None
    """The call that waits; None: it has raised."""


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
        "_alone", "_apart", "_call", "_chunk", "_context", "_held", "_interval", "_late_uses",
        "_lineage", "_node", "_place",
        "_process", "_settles", "_table", "_wrap", "effects", "group", "item", "ran",
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
        node = interval.step.node
        assert node.computation is not None
        self.effects = Effects()
        self.effects.keeper = interval.watermarks
        self._interval = interval
        self._late_uses = late_uses
        self._node = node
        self._table: BroadcastTable | None = None
        """The table that the running key shares; None: there are none, or the key is a cell's
        own."""
        self._lineage = self.effects.lineage = lineage_of(interval.step)
        self._wrap = wrap
        assert node.layout is not None
        self._apart = apart
        self._alone = (
            apart or carefully or (wrap is not None and node.is_weak and not node.layout.stateless)
        )
        """Whether items run one by one, so that the state before each is known."""
        self._settles = not node.layout.has_fidelity
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
        """The chunk that runs."""
        self._place = 0
        """The place in it of the record that runs."""
        self._process = self._process_of_records()
        self._call = Call(node.name, interval.step.routes, self.effects)
        self._context = context_of(interval.step, self._call)

    def _process_of_records(self) -> Process:
        return process_of(self._interval.step, self.effects, self._lineage, wrap=self._wrap)

    def _renew_context(self) -> Context[Any, Any]:
        """End the context of the last call, and make a new one for the next call."""
        ended = self._context
        self._context = context = context_of(self._interval.step, self._call)
        self._call.share(self._table)  # code that has kept the former table changes no later record
        self._late_uses.end(ended)
        return context

    @property
    def running(self) -> Item | None:
        """The record, timer or request that user code runs on; may be read in another thread."""
        chunk = self._chunk
        return self.item if chunk is None else chunk.apart()[self._place]

    def run_chunk(self, chunk: Chunk, groups: list[ChunkGroup], now: int) -> Stop | None:
        """Run the records of a chunk, key after key, until one waits or raises.

        Nothing else runs meanwhile, so all keys see the same times, and effects need no key of
        their own until the run stops.

        Raises:
            BaseException: an error of the engine (`is_ours`).
        """
        context, call, effects, process = self._context, self._call, self.effects, self._process
        watermarks = self._interval.watermarks
        call.watermark, call.promised, call.now = watermarks.input, watermarks.promised, now
        stream, values, micros = chunk.stream, chunk.values, chunk.micros
        settles = self._settles
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
                for place in places:
                    self._place = place
                    if settles and place != places[0]:
                        state.settle()
                    call.micros = at = micros[place]
                    running = process(Record(key, values[place], at, stream), context).__await__()
                    awaited = next(running, _RAN)
                    if awaited is not _RAN:
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

    async def run_all(
        self,
        groups: deque[Group],
        finish: Finish,
        clock: Callable[[], int],
        begun: Begun | None = None,
    ) -> None:
        """Run the items of key after key, with the items that arrive for a key while it runs.

        Each key sees the input watermark as it is when the key's turn comes. The interval's promise
        may have risen since the records were taken, and a window that user code sees as open must
        not be closed downstream already.

        The loop is here so that a key needs no separate coroutine: most keys have one record.

        Args:
            groups: the groups that are left; other tasks may take from it while user code waits.
            clock: returns the wall time, in microseconds.
            begun: what the first key has begun already.

        Raises:
            UserCodeError: an item failed for good, and its computation has ``on_error="fail"``.
            CancelledError: the task was cancelled, by its owner or by user code; no item of `group`
                has had any effect.
        """
        interval, context, effects = self._interval, self._context, self.effects
        call = self._call
        backlog, alone = interval.backlog, self._alone
        watermarks, commits = interval.watermarks, interval.commits
        plain, parked, refused = interval.tables is None, interval.parked, interval.refused
        settles = self._settles
        now = clock() if begun is None else call.now
        held = getrefcount(context)
        while groups:
            group: Group | None = groups.popleft()
            while group is not None:
                if parked and group[0].key_text in parked:
                    group = one_turn(interval, *group)
                self.group = state, items = group
                watermark = watermarks.input
                if not plain:
                    self._begin(state, now)
                changes: list[Change] | None = None
                if not (
                    alone
                    or (parked and state.key_text in parked)
                    or (refused and state.key_text in refused)
                ):
                    # `Call.open`, inlined; the values left out are the same for all keys.
                    call.cell, call.now = state, now
                    call.watermark, call.promised = watermark, watermarks.promised
                    process = self._process
                    try:
                        left = items
                        if begun is not None:
                            self.item = items[begun[0] - 1]
                            left, waiting_call, begun = items[begun[0] :], begun[1], None
                            await waiting_call
                            self.ran += len(items) - len(left)
                            address_all(effects)  # for what it has produced before it waited
                            held = self._held
                            if getrefcount(context) != held:
                                context = self._renew_context()
                        for item in left:
                            self.item = item
                            if settles and item is not items[0]:
                                state.settle()
                            if type(item) is Delivery:
                                call.micros = item.micros
                                await process(item, context)
                            elif type(item) is Firing:
                                await self._fire_sooner(item)
                                await self._fire(item)
                            else:
                                await self._carry_out(item, state)  # type: ignore[arg-type]
                            self.ran += 1
                            if getrefcount(context) != held:
                                context = self._renew_context()
                        if self._table is not None:
                            self._table.check_unchanged()
                        changes = state.capture(commits.n + 1)
                    except GeneratorExit:
                        raise
                    except BaseException as error:
                        state.revert()
                        effects.clear()
                        context = self._renew_context()
                        if is_ours(error):
                            raise_ours(error)
                if changes is None:
                    changes = await self._run_carefully(state, items, watermark, now)
                    context = self._context
                finish(interval, state, items, effects, changes)
                group = None
                waiting = backlog.pop(state.key_text)
                if waiting is not None and (waiting := parked.admitted(waiting)):
                    backlog[state.key_text] = None
                    group = state, waiting
                    now = clock()

    async def run(
        self, state: KeyState, items: list[Item], watermark: int, now: int
    ) -> list[Change]:
        """Run one key's items, one by one; their effects are in `effects`.

        Raises:
            UserCodeError: an item failed for good, and its computation has ``on_error="fail"``.
            CancelledError: the task was cancelled, by its owner or by user code.
        """
        self._begin(state, now)
        return await self._run_carefully(state, items, watermark, now)

    def _begin(self, state: KeyState, now: int) -> None:
        """Prepare the run of a key: select the table that it shares with other keys."""
        if self._interval.tables is not None:
            self._share(state)
        self._call.share(self._table)

    def _share(self, state: KeyState) -> None:
        """Select the table of the key's cell; for the cell's own key, code that changes the
        table."""
        tables = self._interval.tables
        assert tables is not None
        if isinstance(state, BroadcastTable):
            self._table, self._process = None, self._process_broadcast
        else:
            self._table, self._process = tables.of(state.slot), self._process_of_records()

    async def _process_broadcast(self, record: Record[Any], context: Context[Any, Any]) -> None:
        computation = self._node.computation
        assert computation is not None
        name = self._node.shown_names.get(record.stream, record.stream)
        shown = Record(record.key, record.value, record.micros, name)
        await computation.process_broadcast(shown, context.state)

    async def _fire_sooner(self, firing: Firing) -> None:
        """Run timers that this key has just set for an instant before that of a due timer (I6).

        They need not be stored first: like all other decisions of this run, they are made again if
        the run fails. At most `SOONER_TIMERS` run here at a time; further ones go through the
        queue.
        """
        context = self._context
        timers = self.effects.timers
        computation = self._node.computation
        assert computation is not None
        for _ in range(SOONER_TIMERS):
            if not timers or not self._interval.timers.still_due(firing):
                return
            sooner = _soonest_before(firing, timers)
            if sooner is None:
                return
            due, name = sooner
            self._call.micros = due
            timers[name] = None
            if self._lineage is not None:
                self._lineage.begin(None)
            await computation.process_timer(Timer(name[2], firing.timer.kind, due), context)

    async def _fire(self, firing: Firing) -> None:
        """Run a timer, unless it was replaced or cancelled before its turn came."""
        context = self._context
        timer = firing.timer
        name = (firing.key_text, timer.kind, timer.tag)
        timers = self.effects.timers
        if not self._interval.timers.still_due(firing) or name in timers:
            return
        if timers and _soonest_before(firing, timers) is not None:
            timers[name] = (timer.micros, firing.hold, firing.key, firing.slot)
            return
        self._call.micros = timer.micros
        timers[name] = None
        if self._lineage is not None:
            self._lineage.begin(None)
        computation = self._node.computation
        assert computation is not None
        await computation.process_timer(timer, context)

    async def _carry_out(self, request: KeyRequest, state: KeyState) -> None:
        """Carry out an operator's request to the key."""
        if self._lineage is not None:
            self._lineage.begin(None)
        turn = RequestTurn(request, self._interval, state, self._context, self._call, self._process)
        await carry_out(turn)

    async def _run_carefully(
        self, state: KeyState, items: list[Item], watermark: int, now: int
    ) -> list[Change]:
        interval = self._interval
        node = self._node
        total = Effects()
        total.keeper = interval.watermarks
        changes: dict[str, bytes | None] = {}
        has_failed = False
        for item in items:
            self.item = item
            if interval.parked.stops(item, just_failed=has_failed):
                total.take(step_aside(interval, item, now, watermark, total))
                continue
            for attempt in range(1, node.retries + 2):
                context, call = self._context, self._call
                seen = watermark_of(item, watermark)
                call.open(state, seen, interval.watermarks.promised, now, self._table)
                try:
                    if not isinstance(item, Firing) or interval.timers.still_due(item):
                        interval.refused.refuse(item)
                    if isinstance(item, Delivery):
                        interval.step.renew(item)
                        call.micros = item.micros
                        work = self._process(item, context)
                    else:
                        self.effects.timers.update(total.timers)
                        if isinstance(item, Firing):
                            work = self._fire(item)
                        else:
                            work = self._carry_out(item, state)
                    await (in_own_task(work) if self._apart else work)
                    if self._table is not None:
                        self._table.check_unchanged()
                    n = interval.commits.n + 1
                    if changes:  # while user code waited, a commit may have been built without them
                        state.carry(list(changes.items()), n)
                    changed = state.capture(n)
                except GeneratorExit:
                    raise
                except BaseException as error:
                    state.revert()
                    self.effects.clear()
                    if is_ours(error):
                        total.clear()
                        raise_ours(error)
                    if attempt <= node.retries and not isinstance(error, AT_ONCE):
                        continue
                    total.take(set_aside(interval, item, error, attempt, now, watermark))
                    has_failed |= interval.parked.has_stopped(item)
                else:
                    total.take(self.effects)
                    changes.update(changed)
                finally:
                    self._renew_context()
                break
            self.ran += 1
        self.effects.take(total)
        return list(changes.items())


def seal(interval: Interval, groups: list[ChunkGroup], effects: Effects) -> CapturedStates | None:
    """Give the productions of some keys of a chunk their addresses, and capture the changes of
    state.

    Returns:
        None: a production or a state cannot be stored. The effects and changes are dropped: to find
            the
        record at fault, the keys must run one by one.
    """
    if not groups:
        return CapturedStates([], [], [])
    states = [state for state, _ in groups]
    try:
        address_all(effects)
        encoded = encode_all(states)
    except BaseException as error:
        if is_ours(error):
            raise_ours(error)
        drop(groups, effects)
        return None
    return record_all(states, encoded, interval.commits.n + 1)


def drop(groups: list[ChunkGroup], effects: Effects) -> None:
    """Drop effects, and changes of state that are not captured."""
    for state, _ in groups:
        state.revert()
    effects.clear()


def _soonest_before(
    firing: Firing, timers: dict[TimerIdentity, Any]
) -> tuple[int, TimerIdentity] | None:
    """The soonest timer that the key has just set for an instant before that of a due timer.

    It fires first; if it cannot fire at once, the due timer is set again to fire after it (I6).
    """
    due, kind = firing.timer.micros, firing.timer.kind
    return min(
        (
            (timer[0], name)
            for name, timer in timers.items()
            if timer is not None and timer[0] < due and name[1] == kind
        ),
        default=None,
    )
