"""First commits of split and merged intervals, from their parents (paper 7.2, decision 22).

A new part has the lowest of its parents' low watermarks and floors; the floor of a part without
logs to send again is its stamp. Its input watermark is the highest of theirs, so that it goes back
for no key: all intervals of a computation receive the lowest watermark of the same senders.

Of a position only the higher bundle number is kept, with the incarnation of the server in which it
was closed, so that a number used for some keys is not used again for others (decision 30). An
interval with an open bundle is not cut: its members cannot be divided.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from millwheel.errors import Fenced, PlacementRefused


@dataclass(frozen=True, slots=True)
class IntervalHistory:
    id: int
    computation: int
    slot_from: int
    slot_to: int
    is_source: bool
    n: int
    folded: int
    stamp: int
    input_watermark: int
    low_watermark: int
    floor: int
    acked: Mapping[str, Any]
    """Acknowledged numbers by log."""
    position: Mapping[str, Any] | None
    counters: Mapping[str, int]
    grain: int = 1
    """Intervals of its computation begin and end at multiples of this number of slots."""

    def first_commit(self) -> dict[str, Any]:
        return {
            "stamp": self.stamp,
            "input_watermark": self.input_watermark,
            "low_watermark": self.low_watermark,
            "floor": self.floor,
            "acked": msgspec.json.encode(self.acked).decode(),
            "position": (
                None if self.position is None else msgspec.json.encode(self.position).decode()
            ),
            "counters": msgspec.json.encode(self.counters).decode(),
        }


def upper_part(parent: IntervalHistory, at: int) -> IntervalHistory:
    """The upper part of a split; `PlacementRefused` if the interval cannot be split there.

    Its floor is its stamp: it has no logs, and everything that it will send has a later stamp.
    """
    _refuse_unready(parent)
    if not parent.slot_from < at < parent.slot_to:
        raise PlacementRefused(
            f"interval {parent.id} holds the slots from {parent.slot_from} to {parent.slot_to}: "
            f"it cannot be split at {at}"
        )
    if at % parent.grain:
        raise PlacementRefused(
            f"the computation of interval {parent.id} has a shared table for every {parent.grain} "
            f"slots: the interval can be split at a multiple of that, not at {at}"
        )
    return replace(
        parent,
        slot_from=at,
        n=0,
        folded=0,
        floor=parent.stamp,
        acked={},
        position=_numbering(parent),
        counters={},
    )


def merged(lower: IntervalHistory, upper: IntervalHistory) -> IntervalHistory:
    """The merged interval; `PlacementRefused` if the neighbours cannot be merged."""
    for part in (lower, upper):
        _refuse_unready(part)
    if lower.computation != upper.computation or lower.slot_to != upper.slot_from:
        raise PlacementRefused(
            f"intervals {lower.id} and {upper.id} are not the lower and the upper neighbour in "
            "one computation: they cannot be merged"
        )
    return replace(
        lower,
        slot_to=upper.slot_to,
        n=0,
        folded=0,
        stamp=max(lower.stamp, upper.stamp),
        input_watermark=max(lower.input_watermark, upper.input_watermark),
        low_watermark=min(lower.low_watermark, upper.low_watermark),
        floor=min(lower.floor, upper.floor),
        acked={**lower.acked, **upper.acked},
        position=_numbering(lower, upper),
        counters={
            name: lower.counters.get(name, 0) + upper.counters.get(name, 0)
            for name in (*lower.counters, *upper.counters)
        },
    )


def partition(
    discovery: IntervalHistory, slot: int, position: Mapping[str, Any] | None
) -> IntervalHistory:
    """A partition that appeared while its source is read: it begins at `position`, with the low
    watermark that the discovery has promised for it (I17)."""
    return replace(
        discovery,
        slot_from=slot,
        slot_to=slot + 1,
        n=0,
        folded=0,
        floor=discovery.stamp,
        acked={},
        position=position,
        counters={},
    )


def _refuse_unready(history: IntervalHistory) -> None:
    if history.is_source:
        raise PlacementRefused(
            f"interval {history.id} is a partition of an injector: it cannot be split or merged"
        )
    if history.folded != history.n:
        raise PlacementRefused(
            f"interval {history.id} has commits that are not folded ({history.folded} of "
            f"{history.n}): claim it, fold it and release it first"
        )
    bundle = _bundle(history)
    if "open" in bundle:
        raise PlacementRefused(
            f"bundle {bundle['number']} of interval {history.id} is closed and not delivered: "
            "claim the interval, deliver the bundle and release it first"
        )


def _bundle(history: IntervalHistory) -> Mapping[str, Any]:
    """The last numbered bundle of an interval: its ``number``, and its ``open`` members until it is
    delivered. Empty if there was no bundle."""
    found: Mapping[str, Any] = (history.position or {}).get("bundle", {})
    return found


def _numbering(*parents: IntervalHistory) -> dict[str, Any] | None:
    bundles = [_bundle(parent) for parent in parents if _bundle(parent)]
    if not bundles:
        return None
    number = max(bundle["number"] for bundle in bundles)
    found: dict[str, Any] = {"number": number, "inherited": number}
    incarnations = {bundle.get("incarnation") for bundle in bundles}
    if (
        len(incarnations) == 1 and None not in incarnations
    ):  # otherwise the next number is above all
        found["incarnation"] = incarnations.pop()
    return {"bundle": found}


def refuse(sequencers: Mapping[int, int], found: Mapping[int, tuple[int, str | None]]) -> None:
    """Raise the reason for which intervals cannot be split or merged.

    Args:
        sequencers: by interval, the sequencer that was read.
        found: by interval, the stored sequencer and owner.

    Raises:
        Fenced: the sequencer has changed, or the interval is gone.
        PlacementRefused: the interval has an owner.
    """
    for id_, sequencer in sequencers.items():
        if id_ not in found or found[id_][0] != sequencer:
            raise Fenced(f"interval {id_} was claimed, split or merged by another worker")
        if found[id_][1] is not None:
            raise PlacementRefused(
                f"worker {found[id_][1]} owns interval {id_}: it must release the interval before "
                "a split or a merge"
            )
