"""Key intervals and their events as tables."""

from __future__ import annotations

from collections.abc import Mapping

from millwheel.cli.fitted_tables import Cell, Fit, Styled, print_table
from millwheel.cli.printing import seconds_text
from millwheel.runtime.ownership.planner import ReportedLoad
from millwheel.services.operating import short
from millwheel.store.console.inspection import OwnedInterval, PlacementEvent


def print_intervals(found: list[OwnedInterval], labels: Mapping[str, str]) -> None:
    print_table(
        ["id", "computation", "slots", "sequencer", "owner", "moving to", "requested", "cpu",
         "records/s", "queued"],
        [_row(interval, labels) for interval in found],
        Fit(("sequencer", "requested", "moving to", "slots", "cpu", "queued", "records/s")),
    )  # fmt: skip


def print_events(happened: list[PlacementEvent], labels: Mapping[str, str]) -> None:
    print_table(
        ["at", "interval", "computation", "slots", "event", "from", "to", "reason"],
        [
            [
                seconds_text(event.at), str(event.interval),
                labels.get(event.computation, event.computation),
                _slots(event.slot_from, event.slot_to), event.what.replace("_", " to "),
                _name(event.from_worker), _name(event.to_worker), event.reason,
            ]
            for event in happened
        ],
        Fit(("slots", "reason", "from", "computation")),
    )  # fmt: skip


def _row(found: OwnedInterval, labels: Mapping[str, str]) -> list[Cell]:
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
        Styled(f"{_name(found.owner)} (gone)", "error") if gone else _name(found.owner),
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
