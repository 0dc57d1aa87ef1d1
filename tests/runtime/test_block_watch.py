"""The lease while a thread watches the event loop; `tests/faults/test_blocking.py` has real
workers."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest

from millwheel import Settings
from millwheel.core.clock import VirtualClock
from millwheel.runtime.process.lease import MARGIN, Lease
from millwheel.services.block_watch import BlockWatch, Culprit


async def test_a_lease_is_renewed_by_the_workers_clock_and_not_after_its_end() -> None:
    """After its end, as after a suspension, others may have claimed the intervals."""
    clock, heartbeats = VirtualClock(), MagicMock()
    engine = MagicMock(clock=clock, lease=Lease(clock, 10.0), settings=Settings(lease_seconds=10.0))
    engine.heartbeat.published = {}
    watch = BlockWatch(engine, heartbeats)
    culprit = Culprit("a task", None, None, [])
    engine.lease.renewed(clock.monotonic())
    for _ in range(3):
        clock.advance(5.0)
        watch._beat(culprit, 5.0)
        assert engine.lease.left == pytest.approx(10.0 * (1 - MARGIN))
    clock.advance(8.1)
    watch._beat(culprit, 8.1)
    assert engine.lease.left < 0
    assert heartbeats.beat.call_count == 3
