"""``millwheel intervals``: list, move, split and merge key intervals."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import typer

from millwheel.cli.asking import actor
from millwheel.cli.output import print_json, print_table
from millwheel.core.clock import SystemClock
from millwheel.errors import NotCarriedOut
from millwheel.runtime.ownership.planner import ReportedLoad
from millwheel.services.operating import Operator, short
from millwheel.store.address import StoreAddress
from millwheel.store.console.administration import transaction
from millwheel.store.console.asking import Asking
from millwheel.store.console.inspection import OwnedInterval, inspect
from millwheel.store.console.presence import present
from millwheel.store.postgres.store import PostgresStore

T = TypeVar("T")


def list_intervals(store: str | None, pipeline: str | None, events: int, *, as_json: bool) -> None:
    """Print the intervals with their owners, and the newest `events` placement events."""
    with present(StoreAddress.parse(store)) as presence, inspect(presence.url) as inspection:
        name = inspection.choose(pipeline)
        found = inspection.intervals(name)
        happened = inspection.placement_events(name, events) if events else []
        labels = inspection.labels(name)
    if as_json:
        print_json({"pipeline": name, "intervals": found, "events": happened})
        return
    print_table(
        ["id", "computation", "slots", "sequencer", "owner", "moving to", "requested", "cpu",
         "records/s", "queued"],
        [_row(interval, labels) for interval in found],
    )  # fmt: skip
    if events:
        typer.echo()
        print_table(
            ["at", "interval", "computation", "slots", "event", "from", "to", "reason"],
            [
                [
                    event.at, str(event.interval), labels.get(event.computation, event.computation),
                    _slots(event.slot_from, event.slot_to), event.what.replace("_", " to "),
                    _name(event.from_worker), _name(event.to_worker), event.reason,
                ]
                for event in happened
            ],
        )  # fmt: skip


def _row(found: OwnedInterval, labels: Mapping[str, str]) -> list[str]:
    load = ReportedLoad.read({"intervals": {found.id: found.load}}).of(found.id)
    known = found.load is not None
    requested = ["pinned"] if found.pinned else []
    if found.split_at is not None:
        requested.append(f"split at {found.split_at}")
    if found.merge_with is not None:
        requested.append(f"merge with {found.merge_with}")
    gone = found.owner is not None and not found.owner_alive
    return [
        str(found.id),
        labels.get(found.computation, found.computation),
        _slots(found.slot_from, found.slot_to),
        str(found.sequencer),
        _name(found.owner) + (" (gone)" if gone else ""),
        _name(found.wanted_by),
        ", ".join(requested),
        f"{load.cpu:.2f}" if known else "",
        f"{load.records:,.0f}" if known else "",
        f"{load.queue:,}" if known else "",
    ]


def _slots(first: int, end: int) -> str:
    return f"{first}-{end - 1}" if end - first > 1 else str(first)


def _name(worker: str | None) -> str:
    return "" if worker is None else short(worker)


def move(
    interval: int,
    worker: str | None,
    store: str | None,
    pipeline: str | None,
    seconds: float | None,
    reason: str,
) -> None:
    """Move an interval to a worker and pin it there; worker None: unpin the interval."""
    noted = Noted("move_interval", {"interval": interval, "to": worker}, reason)
    if worker is None:
        freed = _operate(store, pipeline, noted, lambda operator: operator.unpin(interval))
        outcome = "is unpinned: the balancer places it again" if freed else "was not pinned"
        typer.echo(f"interval {interval} {outcome}")
        return
    _operate(store, pipeline, noted, lambda operator: operator.move(interval, worker, seconds))
    typer.echo(
        f"requested: move interval {interval} to worker {worker}"
        if seconds is None
        else f"moved interval {interval} to worker {worker} and pinned it there"
    )


def split(
    interval: int,
    at: int | None,
    store: str | None,
    pipeline: str | None,
    seconds: float | None,
    reason: str,
) -> None:
    """Split an interval in two."""
    noted = Noted("split_interval", {"interval": interval, "at": at}, reason)
    at = _operate(store, pipeline, noted, lambda operator: operator.split(interval, at, seconds))
    done = "requested: split" if seconds is None else "split"
    typer.echo(f"{done} interval {interval} at slot {at}")


def merge(
    lower: int,
    upper: int,
    store: str | None,
    pipeline: str | None,
    seconds: float | None,
    reason: str,
) -> None:
    """Merge two adjacent intervals."""
    noted = Noted("merge_intervals", {"lower": lower, "upper": upper}, reason)
    _operate(store, pipeline, noted, lambda operator: operator.merge(lower, upper, seconds))
    done = "requested: merge" if seconds is None else "merged"
    typer.echo(f"{done} intervals {lower} and {upper}")


class Noted(NamedTuple):
    """An operation as ``millwheel log`` shows it."""

    verb: str
    payload: dict[str, Any]
    reason: str


def _operate(
    address: str | None,
    pipeline: str | None,
    noted: Noted,
    work: Callable[[Operator], Awaitable[T]],
) -> T:
    """Run an operator's action on a store, and note it once the workers were asked for it."""
    with present(StoreAddress.parse(address)) as presence:
        with inspect(presence.url) as inspection:
            name = inspection.choose(pipeline)

        async def operate() -> T:
            store = await PostgresStore(presence.url, name).open()
            try:
                return await work(Operator(store, SystemClock(), _print_progress))
            finally:
                await store.close()

        try:
            done = asyncio.run(operate())
        except NotCarriedOut:  # the workers go on with it
            _note(presence.url, name, noted)
            raise
        _note(presence.url, name, noted)
        return done


def _note(url: str, pipeline: str, noted: Noted) -> None:
    with transaction(url) as connection:
        Asking(connection, pipeline).note(actor(noted.reason), noted.verb, noted.payload)


def _print_progress(line: str) -> None:
    typer.echo(line, err=True)
