"""Real workers and a real Spark, killed while an aggregate follows."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark import service
from tests.support.servers import quick_directory


@pytest.fixture
def directory() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="millwheel-spark-", dir=quick_directory()))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.soak
@pytest.mark.spark
def test_an_aggregate_equals_arithmetic_after_a_kill(directory: Path) -> None:
    said: list[str] = []
    assert not service.run(directory, 1, seed=3, flights=10_000, rate=1_000, say=said.append)
    assert said[-1].endswith(": 0 differences")


@pytest.mark.soak
def test_an_aggregate_equals_arithmetic_after_many_kills(directory: Path) -> None:
    seed = time.time_ns()
    assert not service.run(directory, 20, seed=seed, flights=300_000, rate=400, say=print)
