"""A real broker for these tests, and clusters to ask: a real one, and one in memory."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from examples.kafka_broker import jars
from tests.kafka.clusters import FakeSite, GuardedBroker, KafkaSite, RealSite


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    """A broker with one node; skips where there is no Java, and no Maven that gets Kafka."""
    if shutil.which("java") is None:
        pytest.skip("Kafka needs Java 17 or newer (apt-get install openjdk-17-jre-headless)")
    try:
        jars()
    except SystemExit as error:
        pytest.skip(str(error))
    directory = Path(tempfile.mkdtemp(prefix="millwheel-kafka-"))
    made = GuardedBroker(directory, tmp_path_factory.mktemp("certificates"))
    made.start()
    yield made
    made.remove()


@pytest.fixture(params=("fake", "kafka"))
def bootstrap(request: pytest.FixtureRequest) -> str | None:
    """The address of the real broker; None: the cluster in memory."""
    if request.param == "fake":
        return None
    broker: GuardedBroker = request.getfixturevalue("broker")
    return broker.bootstrap


@pytest.fixture
async def cluster(bootstrap: str | None) -> AsyncIterator[KafkaSite]:
    """A cluster in memory, and a real one."""
    if bootstrap is None:
        yield FakeSite()
        return
    site = RealSite(bootstrap)
    await site.open()
    yield site
    await site.close()
