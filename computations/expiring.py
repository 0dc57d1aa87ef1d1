"""State with a time to live."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any, Generic, Literal, TypeVar

import msgspec

from millwheel import Computation, Context, Input, ListState, MapState, Record, Timer
from millwheel.computations.timeline import LAST, micros_of, moment_of
from millwheel.errors import GraphError
from millwheel.windows import length

V = TypeVar("V")
S = TypeVar("S")

TAG = "state expires"
"""The tag of the wrapper's own timer."""


class Expiring(Computation[V, S], Generic[V, S]):
    """Runs a computation, and removes the state of a key after a time without records of the key.

    ```python
    pipeline.add(Expiring(AddUp(), after=timedelta(days=30)), ORDERS.by(customer))
    async with Harness(pipeline) as harness:
        await harness.inject(ORDERS, TEA, at=at(0))
        await harness.inject(ORDERS, MILK, at=at(31 * 86_400))
        assert harness.produced(SPENT) == [300, 90]
    ```

    With ``time="event"``, the state expires when the low watermark, or the next record of the key,
    is more than `after` past the key's newest record (a late record counts as of the low
    watermark); with ``time="wall"``, when `after` has passed since the key's last record was
    processed. Then the next record and the computation's own timers, which neither prolong the
    state nor are cancelled with it, see the empty state; one timer per key removes it from the
    store.

    The state gets a field ``expires_at`` (microseconds; None before the first record). So it must
    be a msgspec.Struct or a dataclass that is not frozen, and the computation must change it in
    place; to replace it, use ``type(ctx.state)()``.

    Args:
        computation: the computation to run; the graph shows its name.
        after: the time to live.
        time: the clock of the time to live, event time or wall time.

    Raises:
        GraphError: `after` is zero or negative, or the computation's state cannot expire.
    """

    def __init__(
        self,
        computation: Computation[V, S],
        *,
        after: timedelta,
        time: Literal["event", "wall"] = "event",
    ) -> None:
        if time not in ("event", "wall"):
            raise GraphError(f"Expiring: time must be 'event' or 'wall', not {time!r}")
        self._inner = computation
        self._after = length("Expiring: after", after)
        self._kind: Literal["watermark", "wall"] = "watermark" if time == "event" else "wall"
        self._state_type = _with_expiry(computation)
        self.rules = {**computation.rules, "after": str(after), "time": time}
        self.state_rules = computation.state_rules
        self.state_functions = computation.state_functions
        self.writes = computation.writes
        self.pane_order = computation.pane_order
        self.wall_timers = True if time == "wall" else computation.wall_timers
        # Attributes of the instance, since they vary with the wrapped computation.
        self.__dict__["version"] = computation.version
        self.__dict__["migrations"] = computation.migrations
        self.__dict__["entry_migrations"] = computation.entry_migrations

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def state_type(self) -> Any:
        """The state type of the wrapped computation, with the time at which it expires."""
        return self._state_type

    def check_inputs(self, inputs: tuple[Input[Any], ...]) -> None:
        self._inner.check_inputs(inputs)

    async def process_record(self, record: Record[V], ctx: Context[S]) -> None:
        newest = self._clock(ctx)
        if self._kind == "watermark":
            # The record's own time counts as well, because the watermark at the time of processing
            # depends on the other records of the commit.
            newest = max(newest, record.micros)
        await self._forget_if_expired(ctx, newest)
        await self._inner.process_record(record, ctx)
        state: Any = ctx.state
        at, before = newest + self._after, state.expires_at
        if before is None:
            self._set_timer(ctx, at)
        # The timer stays as it is and checks again when it fires: moving it for each record
        # would write a row for each.
        state.expires_at = at if before is None else max(before, at)

    async def process_timer(self, timer: Timer, ctx: Context[S]) -> None:
        if timer.tag != TAG:
            await self._inner.process_timer(timer, ctx)
            return
        state: Any = ctx.state
        at = state.expires_at
        if at is not None and not await self._forget_if_expired(ctx, self._clock(ctx)):
            self._set_timer(ctx, at)

    def _clock(self, ctx: Context[S]) -> int:
        return micros_of(ctx.now if self._kind == "wall" else ctx.low_watermark)

    def _set_timer(self, ctx: Context[S], at: int) -> None:
        ctx.set_timer(moment_of(at), TAG, self._kind)

    async def _forget_if_expired(self, ctx: Context[S], clock: int) -> bool:
        state: Any = ctx.state
        if state.expires_at is None:
            return False
        # A watermark timer fires behind its time, a wall timer at it.
        at = state.expires_at + (self._kind == "watermark")
        if clock < at and clock <= LAST:
            return False
        for name in _fields(type(state)):
            value = getattr(state, name)
            if isinstance(value, (MapState, ListState)):
                await value.clear()
        ctx.state = type(state)()
        return True


def _with_expiry(computation: Computation[Any, Any]) -> Any:
    inner = computation.state_type
    subject = f"Expiring: the state of {type(computation).__name__}"
    if inner in (None, type(None)):
        raise GraphError(f"{subject} is None, so nothing can expire")
    if isinstance(inner, type) and "expires_at" in _fields(inner):
        raise GraphError(f"{subject} already has a field expires_at; rename it")
    if _is_open_struct(inner):
        return msgspec.defstruct(inner.__name__, [("expires_at", int | None, None)], bases=(inner,))
    if _is_open_dataclass(inner):
        field = ("expires_at", int | None, dataclasses.field(default=None))
        return dataclasses.make_dataclass(inner.__name__, [field], bases=(inner,))
    raise GraphError(
        f"{subject} must be a msgspec.Struct or a dataclass that is not frozen, not {inner!r}"
    )


def _is_open_struct(kind: Any) -> bool:
    return (
        isinstance(kind, type)
        and issubclass(kind, msgspec.Struct)
        and not kind.__struct_config__.frozen
    )


def _is_open_dataclass(kind: Any) -> bool:
    parameters = getattr(kind, "__dataclass_params__", None)
    return isinstance(kind, type) and parameters is not None and not parameters.frozen


def _fields(kind: type) -> list[str]:
    if issubclass(kind, msgspec.Struct):
        return list(kind.__struct_fields__)
    return (
        [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []
    )
