"""Real workers and writers, with kills."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.inbox import service
from tests.support.servers import quick_directory


def _wrong(kills: int, zombies: int, seed: int, say: Callable[[str], None]) -> list[str]:
    directory = Path(tempfile.mkdtemp(prefix="millwheel-inbox-", dir=quick_directory()))
    directory.chmod(0o755)
    try:
        return asyncio.run(service.run(directory, kills=kills, zombies=zombies, seed=seed, say=say))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.soak
@pytest.mark.process
def test_each_committed_record_counts_once() -> None:
    """Nothing is lost, doubled or late by kills, a zombie, long transactions and rollbacks."""
    said: list[str] = []
    assert not _wrong(kills=3, zombies=1, seed=1, say=said.append)
    assert said[-1].endswith(": 0 differences")


@pytest.mark.soak
def test_each_committed_record_counts_once_for_long() -> None:
    assert not _wrong(kills=20, zombies=4, seed=time.time_ns(), say=print)
