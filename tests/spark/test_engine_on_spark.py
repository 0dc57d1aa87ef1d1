"""``--engine spark`` on Spark itself: `tests/spark/test_engine.py` has the rules."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark import engine_service
from tests.support.servers import quick_directory
from tests.support.spark_pipelines import FINAL


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in ("NEXMARK_DIR", "NEXMARK_LATENESS", "MILLWHEEL_TEST_FILE", "JAVA_HOME", "PATH"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    made = Path(tempfile.mkdtemp(prefix="millwheel-engine-", dir=quick_directory()))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.spark
@pytest.mark.parametrize("kills", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_a_pipeline_on_spark_is_killed_and_goes_on(directory: Path, kills: int) -> None:
    """Two operators, a clock, tables with and without a key; the command is given again after a kill."""
    said: list[str] = []
    wrong = engine_service.run(
        ["hours"], directory, kills=kills, cluster=False, batch_rows=500, rows=500 + 1_000 * kills, seed=1,
        say=said.append,
    )  # fmt: skip
    assert not wrong, "\n".join(wrong)
    assert said[-1].endswith("equal")


@pytest.mark.soak
@pytest.mark.parametrize("cluster", [False, True])
def test_each_pipeline_on_spark_equals_the_engine(directory: Path, cluster: bool) -> None:
    """Drivers, and on a cluster executors, are killed amid batches."""
    assert not engine_service.run(
        list(FINAL), directory, kills=2, cluster=cluster, batch_rows=300, rows=4_000, seed=1, say=print
    )  # fmt: skip
