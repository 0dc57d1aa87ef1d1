"""``millwheel worker --only-keys``: new code on a part of the keys, beside the former code."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.shells import Shell
from tests.support.store_sites import Schema
from tests.support.tills import KEYS, MODULE, NEW, deploy_to, rows, sell, wait_for

ODD = """
SELECT count(*) FROM tills.states AS s
JOIN tills.computation AS c ON c.name = s.computation
JOIN tills.key_interval AS k
    ON k.computation = c.id AND s.slot >= k.slot_from AND s.slot < k.slot_to
WHERE s.entry = '' AND s.version <> k.generation
"""
"""Keys that were not written by the code that has them."""


@pytest.fixture
def shell(tmp_path: Path, new_schema: Callable[[int], Schema]) -> Shell:
    return Shell(tmp_path, new_schema(18).url, "tills")


def test_a_canary_writes_only_its_part_and_is_shown_beside_the_others(shell: Shell) -> None:
    deploy_to(shell, MODULE)
    shell("migrate", "tills")
    sell(shell, KEYS, cents=1)
    former = shell.start("worker", "tills:pipeline")
    wait_for(shell, former, "SELECT count(*) FROM tills.states", 2 * KEYS)
    deploy_to(shell, NEW)
    assert "percentage above 0" in shell("worker", "tills:pipeline", "--only-keys", "5", code=2)
    canary = shell.start("worker", "tills:pipeline", "--only-keys", "20%")
    owned = "SELECT sum(slot_to - slot_from) FROM tills.key_interval WHERE generation = 2"
    wait_for(shell, canary, owned, round(0.2 * 65_536))
    sell(shell, KEYS, cents=2)
    sold = (
        "SELECT count(*) FROM tills.states WHERE value IN ('{\"dollars\": 0.03}', '{\"cents\": 3}')"
    )
    wait_for(shell, canary, sold, KEYS)
    assert rows(shell, ODD) == [(0,)]
    assert "workers of several generations run:" in shell("status")
    pipelines = {one["name"]: one for one in shell.json("status")["pipelines"]}
    parts = {one["generation"]: one["keys"] for one in pipelines["tills"]["generations"]}
    assert parts == {1: pytest.approx(0.8, abs=1e-4), 2: pytest.approx(0.2, abs=1e-4)}
    canary.end(signal.SIGTERM)
    former.end(signal.SIGTERM)
