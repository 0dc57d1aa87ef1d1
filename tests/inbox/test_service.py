"""Real workers and writers, with kills."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.inbox import service
from tests.support.servers import quick_directory


@pytest.mark.process
def test_each_committed_record_counts_once() -> None:
    """Nothing is lost, doubled or late by kills, a zombie, long transactions and rollbacks."""
    directory = Path(tempfile.mkdtemp(prefix="millwheel-inbox-", dir=quick_directory()))
    directory.chmod(0o755)
    said: list[str] = []
    try:
        assert not asyncio.run(service.run(directory, kills=3, zombies=1, seed=1, say=said.append))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    assert said[-1].endswith(": 0 differences")
