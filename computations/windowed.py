"""Aggregation over windows of event time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar, get_args, runtime_checkable

from millwheel import Computation, Context, Input, Record, Stream, Timer
from millwheel.computations.counted import Counted
from millwheel.computations.fixed_windows import FixedWindows
from millwheel.computations.folds import Fold
from millwheel.computations.grouping import one_by_one
from millwheel.computations.panes import Late, Panes
from millwheel.computations.sessions import Sessions
from millwheel.computations.sliced import Sliced
from millwheel.computations.timeline import written
from millwheel.core.functions import check_function
from millwheel.errors import GraphError
from millwheel.windows import Assigner, Count, Early, Global, Pane, Session, Sliding, rule_of, shown

V = TypeVar("V")
A = TypeVar("A")
R = TypeVar("R")


class Keeping(Protocol[V]):
    """The implementation of one kind of windows: the two calls of a computation, and its state."""

    @property
    def state_type(self) -> Any: ...
    def process_record(self, record: Record[V], ctx: Context[Any]) -> Coroutine[Any, Any, None]: ...
    def process_timer(self, timer: Timer, ctx: Context[Any]) -> Coroutine[Any, Any, None]: ...


@runtime_checkable
class Grouping(Protocol[V]):
    """An implementation that processes records of one key together."""

    def process_group(
        self, records: Sequence[Record[V]], ctx: Context[Any]
    ) -> Coroutine[Any, Any, None]: ...


class Windowed(Computation[V, Any], Generic[V, A, R]):
    """Folds the records of each key and window, and sends a pane when the watermark closes it.

    ```python
    from millwheel.windows import Pane, Tumbling

    COUNTS = Stream("counts", Pane[int])
    pipeline.add(Windowed(Tumbling(hours=1), count, to=COUNTS), ORDERS.by(customer))
    async with Harness(pipeline) as harness:
        await harness.inject(ORDERS, TEA, MILK, at=at(0))
        await harness.advance(ORDERS, at(3600))
        assert [pane.value for pane in harness.produced(COUNTS)] == [2]
    ```

    The on-time pane has its window's last microsecond as timestamp, so that hourly panes summed
    into days equal direct days. A record is late if that microsecond is behind the low watermark,
    and left out if none of its windows accepts it. It writes one entry of its key's state: its
    window, session or slice. Sliding windows need an entry per window (size / slide of them) with a
    fold that has no ``merge`` (with a warning), with `early`, or without `accumulate`.

    Args:
        windows: the windows, one of `millwheel.windows` or your own `Assigner`.
        fold: the fold of values into a result.
        to: the stream of panes.
        late: ``"drop"`` drops a late record; ``"amend"`` sends the window's pane again with the
            record included; a stream receives its value (``late_dropped``, ``late_amended``,
            ``late_sent``).
        allowed_lateness: time after its end for which a window is still amended. Then its state is
            removed, and its late records are dropped, or sent to `late` if that is a stream. None:
            no limit with ``"amend"``, no amendments with a stream.
        early: sends panes before the window closes. A global window needs it.
        accumulate: whether each pane covers all records of the window. False: only those since the
            pane before, with no pane if there are none.
        row: makes the value that is sent of a pane; a pane for which it returns None is not sent.

    Raises:
        GraphError: sessions with a fold without ``merge``, a global window that would never send,
            lateness for count windows, an `allowed_lateness` that is negative or comes with
            ``late="drop"``, a stream of another type for late records.
    """

    def __init__(
        self,
        windows: Assigner | Session | Count,
        fold: Fold[V, A, R],
        to: Stream[Pane[R]],
        *,
        late: Late[V] = "drop",
        allowed_lateness: timedelta | None = None,
        early: Early | None = None,
        accumulate: bool = True,
        row: Callable[[Pane[R]], Any] | None = None,
    ) -> None:
        subject = f"windows of stream {to.name!r}"
        if not isinstance(late, Stream) and late not in ("drop", "amend"):
            raise GraphError(f'{subject}: late must be "drop", "amend" or a stream, not {late!r}')
        if allowed_lateness is not None:
            _check_lateness(subject, allowed_lateness, late)
        if not isinstance(fold, Fold):
            raise GraphError(
                f"{subject}: the fold must be a Fold, such as count or total(lambda value: "
                f"value.price), not {fold!r}"
            )
        if early is not None and not isinstance(early, Early):
            raise GraphError(
                f"{subject}: early must be an Early, such as Early(records=10), not {early!r}"
            )
        if row is not None:
            check_function(row, f"{subject}: row=", "returns the row of a pane")
        self._to = to
        self._late = late
        self.writes = written(to, late if isinstance(late, Stream) else None)
        panes = Panes(fold, to, late, allowed_lateness, early, accumulate)
        panes.row = row
        self.wall_timers = early is not None and early.seconds is not None
        self.pane_order = panes.order(by_number=isinstance(windows, Count))
        self.state_rules = {"windows": rule_of(windows)}
        self.state_functions = {"fold": fold.functions}
        self.rules = {
            "late": f"to {late.name}" if isinstance(late, Stream) else late,
            "allowed_lateness": None if allowed_lateness is None else str(allowed_lateness),
            "early": None if early is None else repr(early),
            "accumulate": accumulate,
        }
        self._keeping = self._keep(windows, panes, subject, late)
        keeping = self._keeping
        self._group = keeping if early is None and isinstance(keeping, Grouping) else None

    @staticmethod
    def _keep(
        windows: Assigner | Session | Count, panes: Panes[V, A, R], what: str, late: Late[V]
    ) -> Keeping[V]:
        if isinstance(windows, Session):
            if panes.fold.merge is None:
                raise GraphError(
                    f"{what}: sessions need a fold that can merge, since a record may join two "
                    "sessions; give the fold a merge=... that combines two accumulators"
                )
            return Sessions(windows, panes)
        if isinstance(windows, Count):
            if late != "drop":
                raise GraphError(
                    f"{what}: count windows close on records, not on time, so no record is late; "
                    "leave out late and allowed_lateness"
                )
            return Counted(windows, panes)
        if isinstance(windows, type) or not (hasattr(windows, "spans") and hasattr(windows, "at")):
            raise GraphError(
                f"{what}: windows must be such as Tumbling(minutes=1) or "
                f"Session(timedelta(minutes=5)), not {windows!r}"
            )
        if isinstance(windows, Global) and panes.early is None:
            raise GraphError(
                f"{what}: a global window closes at the end of time and sends nothing before "
                "that; give it early=Early(records=...) or early=Early(seconds=...)"
            )
        if isinstance(windows, Sliding) and panes.early is None and panes.accumulate:
            if panes.fold.merge is not None:
                return Sliced(windows, panes)
            if windows.number > 1:
                warnings.warn(
                    f"{what}: the fold has no merge, so each record writes the state of all "
                    f"{windows.number} windows that contain it, not of one slice; give it "
                    "merge=...",
                    stacklevel=3,
                )
        return FixedWindows(windows, panes)

    @property
    def name(self) -> str:
        return f"make_{self._to.name}"

    @property
    def state_type(self) -> Any:
        return self._keeping.state_type

    def check_inputs(self, inputs: tuple[Input[Any], ...]) -> None:
        """Check that late values have the type of the stream for late records."""
        late = self._late
        if not isinstance(late, Stream):
            return
        for stream in (input_.stream for input_ in inputs):
            kinds = get_args(late.value_type) or (late.value_type,)
            if stream.value_type not in (late.value_type, *kinds):
                raise GraphError(
                    f"windows of stream {self._to.name!r}: late records of stream {stream.name!r} "
                    f"are of type {_name(stream.value_type)}, but stream {late.name!r}, which "
                    f"receives them, is of type {_name(late.value_type)}; give both the same type"
                )

    # Not `async`: a coroutine that only awaits another one would cost each record some 100 ns.

    def process_record(self, record: Record[V], ctx: Context[Any]) -> Coroutine[Any, Any, None]:
        return self._keeping.process_record(record, ctx)

    async def process_group(self, records: Sequence[Record[V]], ctx: Context[Any]) -> None:
        if self._group is not None:
            await self._group.process_group(records, ctx)
        else:
            await one_by_one(self._keeping.process_record, records, ctx)

    def process_timer(self, timer: Timer, ctx: Context[Any]) -> Coroutine[Any, Any, None]:
        return self._keeping.process_timer(timer, ctx)


def _check_lateness(what: str, allowed: timedelta, late: Late[Any]) -> None:
    if not isinstance(allowed, timedelta) or allowed < timedelta(0):
        raise GraphError(
            f"{what}: allowed_lateness must be a timedelta of zero or more, for example "
            f"timedelta(minutes=1), not {shown(allowed)}"
        )
    if late == "drop":
        raise GraphError(
            f"{what}: allowed_lateness limits the time in which windows are amended, but late "
            'records are dropped; give it together with late="amend" or late=STREAM'
        )


def _name(kind: Any) -> str:
    return str(getattr(kind, "__name__", kind))
