"""Aggregation over windows of event time."""

from __future__ import annotations

import warnings
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar

from millwheel import Computation, Context, Record, Stream, Timer
from millwheel.computations.counted import Counted
from millwheel.computations.folds import Fold
from millwheel.computations.panes import Late, Panes
from millwheel.computations.sessions import Sessions
from millwheel.computations.sliced import Sliced
from millwheel.computations.standing import Standing
from millwheel.errors import GraphError
from millwheel.windows import Assigner, Count, Early, Global, Pane, Session, Sliding

V = TypeVar("V")
A = TypeVar("A")
R = TypeVar("R")


class Keeping(Protocol[V]):
    """How the windows of one kind are kept: the two calls of a computation, and its state."""

    @property
    def state_type(self) -> Any: ...
    def process_record(self, record: Record[V], ctx: Context[Any]) -> Coroutine[Any, Any, None]: ...
    def process_timer(self, timer: Timer, ctx: Context[Any]) -> Coroutine[Any, Any, None]: ...


class Windowed(Computation[V, Any], Generic[V, A, R]):
    """Folds the records of each key and window, and sends a pane when the watermark closes it.

    The on-time pane carries the window's last microsecond as its timestamp, so that hourly
    panes summed into days equal direct days. A record is late when its window's last
    microsecond is behind the low watermark; one that belongs to several windows is late for
    some of them, and left out only when none takes it any more.

    A record writes one entry of its key's state: its window, its session, or its slice.
    Sliding windows fall back to an entry per window, size / slide of them, where slices cannot
    do: with a fold that has no ``merge`` (a warning says so), with `early`, or without
    `accumulate`.

    Args:
        windows: which windows a record belongs to: of `millwheel.windows`, or your own
            `Assigner`.
        fold: how values become a result.
        to: the stream of panes.
        late: what becomes of a late record: ``"drop"`` it; ``"amend"``: send the window's
            pane again with the record in it; or a stream to send its value to. Each is
            counted (``late_dropped``, ``late_amended``, ``late_sent``).
        allowed_lateness: how long after its end a window is still amended; then its state
            goes, and what comes for it is dropped or, if `late` is a stream, goes there. None:
            for ever with ``"amend"``, not at all with a stream.
        early: when panes are sent before the window closes. A global window needs it.
        accumulate: each pane tells all that the window holds; else only what is new since the
            pane before, and none is sent when nothing is.

    Raises:
        GraphError: what cannot work: sessions of a fold without ``merge``, a global window
            that would never send, lateness for count windows.
        ValueError: an `allowed_lateness` that is negative, or with ``late="drop"``.
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
    ) -> None:
        if allowed_lateness is not None and (late == "drop" or allowed_lateness < timedelta(0)):
            raise ValueError(
                'allowed_lateness is a time of zero or more, and goes with late="amend" or a stream'
            )
        if isinstance(late, str) and late not in ("drop", "amend"):
            raise GraphError(f'late is "drop", "amend" or a stream, not {late!r}')
        self._to = to
        self.writes = (to, late) if isinstance(late, Stream) else (to,)
        panes = Panes(fold, to, late, allowed_lateness, early, accumulate)
        self._keeping = self._keep(windows, panes, f"windows of stream {to.name!r}", late)

    @staticmethod
    def _keep(
        windows: Assigner | Session | Count, panes: Panes[V, A, R], what: str, late: Late[V]
    ) -> Keeping[V]:
        if isinstance(windows, Session):
            if panes.fold.merge is None:
                raise GraphError(
                    f"{what}: sessions need a fold that can merge, since a record may join two of "
                    "them; give the fold merge=..., one accumulator of two"
                )
            return Sessions(windows, panes)
        if isinstance(windows, Count):
            if late != "drop":
                raise GraphError(
                    f"{what}: count windows close on records, not on time, so that none is late; "
                    "leave out late and allowed_lateness"
                )
            return Counted(windows, panes)
        if isinstance(windows, Global) and panes.early is None:
            raise GraphError(
                f"{what}: a global window closes at the end of time, and would send nothing "
                "before; give it early=Early(records=...) or early=Early(seconds=...)"
            )
        if isinstance(windows, Sliding) and panes.early is None and panes.accumulate:
            if panes.fold.merge is not None:
                return Sliced(windows, panes)
            if windows.number > 1:
                warnings.warn(
                    f"{what}: the fold has no merge, so each record writes the state of all the "
                    f"{windows.number} windows that hold it, not of one slice; give it merge=...",
                    stacklevel=3,
                )
        return Standing(windows, panes)

    @property
    def name(self) -> str:
        """Called after the stream it makes."""
        return f"make_{self._to.name}"

    @property
    def state_type(self) -> Any:
        """Windows whose accumulators have the fold's type."""
        return self._keeping.state_type

    # Not `async`: a coroutine that only awaits another one would cost each record some 100 ns.

    def process_record(self, record: Record[V], ctx: Context[Any]) -> Coroutine[Any, Any, None]:
        return self._keeping.process_record(record, ctx)

    def process_timer(self, timer: Timer, ctx: Context[Any]) -> Coroutine[Any, Any, None]:
        return self._keeping.process_timer(timer, ctx)
