"""Bugs to plant into the workers of a run: each takes away a rule, and the reader must see it.

What is not here is planted in plain snapshots and in real tables (`tests.campaign.test_campaign`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

from millwheel.runtime.seen.dedup import Dedup
from millwheel.store.postgres import statements
from millwheel.store.postgres.lane import PostgresLane
from millwheel.store.postgres.statements import FENCE
from tests.sim import planted as simulated

VARIABLE = "CAMPAIGN_PLANT"

Patch = tuple[Any, str, Any]
"""(where, what, what instead)."""

CHECK_OF_N = """(
        SELECT l.n + 1
        FROM (
            SELECT p.n FROM {previous} AS p
            WHERE p.interval_id = x.interval_id ORDER BY p.n DESC LIMIT 1
        ) AS l
        WHERE l.n = x.n - 1
    )"""
NEXT_N = "(SELECT max(c.n) + 1 FROM {commit_record} AS c WHERE c.interval_id = x.interval_id)"
CHECK_OF_SEQUENCER = """(
        SELECT k.sequencer FROM {key_interval} AS k
        WHERE k.id = x.interval_id AND k.sequencer = x.sequencer
        FOR SHARE
    )"""


def _fence_skipped() -> list[Patch]:
    """A commit is taken from whoever comes (I3)."""
    text_of = statements.text_of

    def unfenced(name: str) -> str:
        text = text_of(name)
        if name == FENCE:
            assert CHECK_OF_N in text
            assert CHECK_OF_SEQUENCER in text
            text = text.replace(CHECK_OF_N, NEXT_N).replace(CHECK_OF_SEQUENCER, "x.sequencer")
        return text

    return [(statements, "text_of", unfenced)]


def _dedup_left_out() -> list[Patch]:
    """What was done is not noted, and so not known when it comes again (I2)."""
    parts = PostgresLane._parts

    async def look_up(self: Dedup, maybe: Any) -> set[bytes]:
        return set()

    def without_seen(self: PostgresLane, commit: Any) -> Any:
        commit.seen = {}
        return parts(self, commit)

    return [(Dedup, "look_up", look_up), (PostgresLane, "_parts", without_seen)]


PLANTED: dict[str, Callable[[], list[Patch]]] = {
    "fence skipped": _fence_skipped,
    "dedup left out": _dedup_left_out,
    "ACK before commit": simulated.PLANTED["ACK before commit"],
}


def plant(name: str) -> None:
    """Put a bug into this process, for good."""
    for patch in PLANTED[name]():
        mock.patch.object(*patch).start()
