"""``millwheel intervals``: list, move, split and merge key intervals."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import typer

from millwheel.cli.command import command, group
from millwheel.cli.interval_table import print_events, print_intervals
from millwheel.cli.opened_store import inspecting, opened
from millwheel.cli.operator_desk import actor
from millwheel.cli.options import CommonOptions, Json, OnePipeline, RequestOptions
from millwheel.cli.printing import print_json, print_result, tell
from millwheel.errors import UsageError
from millwheel.services.interval_changes import Noted, operate
from millwheel.services.operating import Operator
from millwheel.store.console.inspection import inspect

T = TypeVar("T")

app = typer.Typer()
intervals = group(app, "intervals")

IntervalId = Annotated[int, typer.Argument(metavar="ID")]


@command(
    intervals,
    "list",
    examples=[
        "millwheel intervals list",
        "millwheel intervals list --events 20  # and the newest changes of owners",
    ],
)
def list_intervals(
    pipeline: OnePipeline = None,
    events: Annotated[
        int, typer.Option(min=0, metavar="N", help="Also list the newest N placement events.")
    ] = 0,
    as_json: Json = False,
    *,
    common: CommonOptions,
) -> None:
    """List intervals with their owners and their load."""
    with inspecting(common) as inspection:
        name = inspection.choose(pipeline)
        found = inspection.intervals(name)
        happened = inspection.placement_events(name, events) if events else []
        labels = inspection.labels(name)
    if as_json:
        print_json({"pipeline": name, "intervals": found, "events": happened})
        return
    print_intervals(found, labels)
    if events:
        typer.echo()
        print_events(happened, labels)


@command(
    intervals,
    "move",
    examples=[
        "millwheel intervals move 7 bec7c335",
        "millwheel intervals move 7 --anywhere  # let the balancer place it again",
    ],
)
def move_interval(
    interval: IntervalId,
    worker: Annotated[
        str | None, typer.Argument(metavar="WORKER", help="Id of the worker, or a unique prefix.")
    ] = None,
    anywhere: Annotated[
        bool, typer.Option("--anywhere", help="Unpin it: let the balancer place it again.")
    ] = False,
    *,
    request: RequestOptions,
    common: CommonOptions,
) -> None:
    """Move an interval to a worker and pin it there for as long as the worker lives."""
    if anywhere == (worker is not None):
        raise UsageError("name the worker to move it to, or give --anywhere")
    noted = Noted("move_interval", {"interval": interval, "to": worker})
    if worker is None:
        freed = _operate(common, request, noted, lambda operator: operator.unpin(interval))
        text = "is unpinned: the balancer places it again" if freed else "was not pinned"
        outcome = "unpinned" if freed else "was not pinned"
        _print_done(noted, outcome, f"interval {interval} {text}", request)
        return
    seconds = request.wait or None
    _operate(common, request, noted, lambda operator: operator.move(interval, worker, seconds))
    if seconds is None:
        text = f"requested: move interval {interval} to worker {worker}"
        _print_done(noted, "requested", text, request)
    else:
        text = f"moved interval {interval} to worker {worker} and pinned it there"
        _print_done(noted, "moved", text, request)


@command(
    intervals,
    "split",
    examples=[
        "millwheel intervals split 7",
    ],
)
def split_interval(
    interval: IntervalId,
    at: Annotated[
        int | None,
        typer.Option(
            metavar="SLOT",
            help="First slot of the upper part. Default: the median of its load if known, "
            "otherwise the middle of its slots.",
        ),
    ] = None,
    *,
    request: RequestOptions,
    common: CommonOptions,
) -> None:
    """Split an interval in two."""
    noted = Noted("split_interval", {"interval": interval, "at": at})
    seconds = request.wait or None
    at = _operate(common, request, noted, lambda operator: operator.split(interval, at, seconds))
    done = "requested: split" if seconds is None else "split"
    cut = Noted("split_interval", {"interval": interval, "at": at})
    outcome = "requested" if seconds is None else "split"
    _print_done(cut, outcome, f"{done} interval {interval} at slot {at}", request)


@command(
    intervals,
    "merge",
    examples=[
        "millwheel intervals merge 7 8",
    ],
)
def merge_intervals(
    lower: Annotated[int, typer.Argument(metavar="LOWER")],
    upper: Annotated[int, typer.Argument(metavar="UPPER")],
    *,
    request: RequestOptions,
    common: CommonOptions,
) -> None:
    """Merge two adjacent intervals, on the worker that owns the lower one."""
    noted = Noted("merge_intervals", {"lower": lower, "upper": upper})
    seconds = request.wait or None
    _operate(common, request, noted, lambda operator: operator.merge(lower, upper, seconds))
    done = "requested: merge" if seconds is None else "merged"
    outcome = "requested" if seconds is None else "merged"
    _print_done(noted, outcome, f"{done} intervals {lower} and {upper}", request)


def _print_done(noted: Noted, outcome: str, text: str, request: RequestOptions) -> None:
    print_result({**noted.payload, "outcome": outcome}, [text], as_json=request.as_json)


def _operate(
    common: CommonOptions,
    request: RequestOptions,
    noted: Noted,
    work: Callable[[Operator], Awaitable[T]],
) -> T:
    with opened(common) as presence:
        with inspect(presence.url) as inspection:
            name = inspection.choose(request.pipeline)
        return operate(presence.url, name, actor(request.reason), noted, work, _print_progress)


def _print_progress(line: str) -> None:
    tell(line, err=True)
