"""Real workers on a real Kafka, killed while they work."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

import pytest

from examples.kafka_broker import KafkaBroker
from tests.kafka import service
from tests.support.servers import quick_directory


@pytest.mark.process
def test_each_committed_record_counts_once(broker: KafkaBroker) -> None:
    """Nothing is lost or doubled by kills, a zombie, aborted transactions and added partitions."""
    directory = Path(tempfile.mkdtemp(prefix="millwheel-kafka-", dir=quick_directory()))
    directory.chmod(0o755)
    said: list[str] = []
    try:
        faults = {"kill": 4, "zombie": 1, "broker": 1}
        wrong = service.run(broker, directory, faults, seed=1, say=said.append)
        assert not asyncio.run(wrong)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    assert said[-1].endswith(": 0 differences")
