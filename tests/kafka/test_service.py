"""Real workers on a real Kafka, killed while they work."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.kafka_broker import KafkaBroker
from tests.kafka import service
from tests.kafka.faults import KINDS
from tests.support.servers import quick_directory

FORGETS_SOON = ("broker.session.timeout.ms=2000", "broker.heartbeat.interval.ms=500")
"""A broker that was killed can start again once it is missed: by default after 9 s."""


@pytest.fixture
def directory() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="millwheel-kafka-", dir=quick_directory()))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.process
def test_each_committed_record_counts_once(broker: KafkaBroker, directory: Path) -> None:
    """Nothing is lost or doubled by kills, a zombie, aborted transactions and added partitions.

    The broker that is killed is one of its own: that of the other tests has so many topics that it
    starts slowly.
    """
    del broker  # it has shown that Kafka can be started here
    said: list[str] = []
    faults = {"kill": 1, "zombie": 1, "broker": 1}
    own = KafkaBroker(directory / "kafka", settings=FORGETS_SOON)
    own.start()
    try:
        wrong = asyncio.run(service.run(own, directory, faults, seed=1, say=said.append))
    finally:
        own.remove()
    assert not wrong, "\n".join(wrong)
    assert said[-1].endswith(": 0 differences")


@pytest.mark.soak
def test_each_committed_record_counts_once_through_all_faults(directory: Path) -> None:
    """On three brokers; intervals are split, merged and moved as well."""
    faults = {"kill": 20, "zombie": 4, "broker": 3, "node": 10, "frozen": 10, "cut": 30}
    assert faults.keys() == KINDS.keys()
    broker = KafkaBroker(directory / "kafka", 3)
    broker.start()
    try:
        assert not asyncio.run(
            service.run(broker, directory, faults, seed=time.time_ns(), say=print)
        )
    finally:
        broker.remove()
