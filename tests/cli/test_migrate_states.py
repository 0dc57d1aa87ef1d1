"""``millwheel migrate --states``: stored values come to the present version while workers run."""

from __future__ import annotations

import runpy
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from millwheel.services import state_migration
from millwheel.store.console.old_states import BEFORE_ALL, CurrentVersion, OldStates
from tests.support.shells import Shell
from tests.support.store_sites import Schema
from tests.support.tills import (
    KEYS,
    MODULE,
    NEW,
    deploy_former,
    deploy_new,
    deploy_to,
    rows,
    sell,
    take_over,
    wait_for,
)


@pytest.fixture
def shell(tmp_path: Path, new_schema: Callable[[int], Schema]) -> Shell:
    return Shell(tmp_path, new_schema(18).url, "tills")


SHOWN = """
SELECT t.version, s.version, t.cents, s.value, count(*)
FROM tills.state_of_tills AS t JOIN tills.state_of_tills_by_shop AS s USING (key)
GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
"""


def test_states_are_migrated_while_a_worker_runs(shell: Shell) -> None:
    """The arithmetic of all keys is in the view at every moment: NULL, or the right number."""
    deploy_former(shell, KEYS)
    deploy_to(shell, NEW)
    assert "Deploy this code first" in shell("migrate", "tills:pipeline", "--states", code=2)

    running = shell.start("run", "tills:pipeline")
    sell(shell, 50, cents=2)
    wait_for(shell, running, "SELECT count(*) FROM tills.state_of_tills WHERE version = 2", 50)
    assert rows(shell, SHOWN) == [(1, 1, None, None, KEYS - 50), (2, 2, 3, 3, 50)]
    said = shell("migrate", "tills:pipeline", "--states")
    assert "every stored state has the present version" in said
    assert rows(shell, SHOWN) == [(2, 2, 1, 1, KEYS - 50), (2, 2, 3, 3, 50)]
    assert "0 values migrated" in shell("migrate", "tills:pipeline", "--states")

    sell(shell, KEYS, cents=4)
    wait_for(shell, running, "SELECT count(*) FROM tills.state_of_tills WHERE cents >= 5", KEYS)
    running.end(signal.SIGINT)
    assert rows(shell, SHOWN) == [(2, 2, 5, 5, KEYS - 50), (2, 2, 7, 7, 50)]


def test_values_of_intervals_that_former_code_may_own_stay(shell: Shell) -> None:
    deploy_former(shell, KEYS)
    deploy_new(shell)
    with psycopg.connect(shell.environment["MILLWHEEL_STORE"]) as connection:
        connection.execute(
            "UPDATE tills.key_interval SET generation = 1 "
            "WHERE id = (SELECT min(id) FROM tills.key_interval WHERE slot_to > 100)"
        )
    said = shell("migrate", "tills:pipeline", "--states")
    left = rows(shell, "SELECT count(*) FROM tills.states WHERE version = 1")[0][0]
    assert 0 < int(str(left)) < KEYS
    assert f"{left} values of former versions are left: {left} in key intervals" in said


def test_values_that_only_a_worker_can_fold_are_said_at_once(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed workers leave commits that the next owners fold: waiting for them needs one."""
    former, new = (text.replace("fold_seconds=0.2", "fold_seconds=600") for text in (MODULE, NEW))
    deploy_to(shell, former)
    shell("migrate", "tills")
    sell(shell, 3, cents=1)
    running = shell.start("run", "tills:pipeline")
    wait_for(shell, running, "SELECT count(*) FROM tills.states", 6)
    running.end(signal.SIGKILL)
    take_over(shell, new, generation=2, number=signal.SIGKILL)
    ((left,),) = rows(shell, "SELECT count(*) FROM tills.states WHERE version = 1")
    assert left == 6

    pauses: list[float] = []
    monkeypatch.setenv("INPUT", shell.environment["INPUT"])
    module: dict[str, Any] = runpy.run_path(str(shell.directory / "tills.py"))
    found = state_migration.migrate_states(
        module["pipeline"],
        shell.environment["MILLWHEEL_STORE"],
        values_per_second=5_000,
        pause=pauses.append,
    )
    assert (found.left, found.has_workers) == (6, False)
    assert sum(pauses) < 1
    said = shell("migrate", "tills:pipeline", "--states")
    assert "6 values of former versions are left: 0 in key intervals" in said
    assert "6 in commits that only a worker folds. No worker runs: start workers of this" in said


def test_a_migration_that_fails_names_the_key_and_the_rest_follows(shell: Shell) -> None:
    deploy_former(shell, 3)
    deploy_new(shell)
    with psycopg.connect(shell.environment["MILLWHEEL_STORE"]) as connection:
        connection.execute(
            """UPDATE tills.state SET value = '{"dollars": "odd"}' """
            """WHERE key = '"k1"' AND entry = ''"""
        )
    said = shell("migrate", "tills:pipeline", "--states", code=6)
    assert """state of 'tills', key "k1": the migration from version 1 to 2 failed""" in said
    with psycopg.connect(shell.environment["MILLWHEEL_STORE"]) as connection:
        connection.execute(
            """UPDATE tills.state SET value = '{"dollars": 0.01}' """
            """WHERE key = '"k1"' AND entry = ''"""
        )
    assert rows(shell, SHOWN) == [(1, 2, None, 1, 1), (2, 2, 1, 1, 2)]
    assert "every stored state" in shell("migrate", "tills:pipeline", "--states")
    assert rows(shell, SHOWN) == [(2, 2, 1, 1, 3)]


def test_a_value_that_has_changed_since_it_was_read_stays(shell: Shell) -> None:
    deploy_former(shell, 3)
    url = shell.environment["MILLWHEEL_STORE"]
    ((computation,),) = rows(shell, "SELECT id FROM tills.computation WHERE name = 'tills'")
    with psycopg.connect(url, autocommit=True) as connection:
        states = OldStates(connection, "tills")
        current = CurrentVersion(int(str(computation)), 2, since=1)
        page = states.page([current], BEFORE_ALL)
        assert len(page.found) == 6
        assert page.last is not None
        assert states.page([current], page.last).last is None
        changed, held, *_ = page.found
        with psycopg.connect(url) as owner:
            owner.execute(
                "UPDATE tills.state SET value = '7' WHERE (key, entry) = (%s, %s)",
                (changed.place.key, changed.place.entry),
            )
            owner.commit()
            owner.execute(
                "SELECT FROM tills.state WHERE (key, entry) = (%s, %s) FOR UPDATE",
                (held.place.key, held.place.entry),
            )
            assert states.replace([(of, b"8", 2) for of in page.found]) == 4
    values = rows(shell, "SELECT value, version, count(*) FROM tills.state GROUP BY 1, 2")
    assert (7, 1, 1) in values, "somebody else has written it"
    assert (8, 2, 4) in values
    assert len(values) == 3, "the row that was held is as it was"


def test_the_plan_of_a_way_back_shows_the_keys_that_stand_in_it(shell: Shell) -> None:
    deploy_former(shell, 3)
    deploy_new(shell)
    assert "every stored state" in shell("migrate", "tills:pipeline", "--states")
    deploy_to(shell, MODULE)
    planned = shell.start("plan", "tills:pipeline").end()
    assert planned[0] == 4
    assert "this code is generation 1" in planned[1]
    assert """in the way: state of 'tills', key "k1", is of version 2""" in planned[1]
    assert """key "k1", by_shop/"shop", is of version 2""" in planned[1]
    refused = shell("rollback", "tills:pipeline", code=4)
    assert "or, to go back, give migrations = {2: down}" in refused

    down = "migrations = {2: lambda new: {'dollars': new.get('cents', 0) / 100}}"
    entries = "entry_migrations = {'by_shop': {2: lambda new: new / 100}}"
    body = "    async def process_record"
    deploy_to(shell, back := MODULE.replace(body, f"    {down}\n    {entries}\n\n{body}"))
    assert "generation 3 is deployed" in shell("rollback", "tills:pipeline")
    take_over(shell, back, generation=3)
    assert "6 values migrated" in shell("migrate", "tills:pipeline", "--states")
    dollars = "SELECT version, value, count(*) FROM tills.states GROUP BY 1, 2 ORDER BY 2"
    assert rows(shell, dollars) == [(1, 0.01, 3), (1, {"dollars": 0.01}, 3)]


WITHOUT = NEW.replace("    migrations =", "    without =").replace("entry_migrations", "gone")
"""The new tills, after their migrations were deleted."""


def test_a_migration_may_go_only_when_no_value_needs_it(shell: Shell) -> None:
    """Without it a former value would be read as one of the new type, by its defaults."""
    deploy_former(shell, 3)
    deploy_new(shell)
    deploy_to(shell, WITHOUT)
    refused = shell("plan", "tills:pipeline", code=4)
    assert """state of 'tills', key "k1", is of version 1""" in refused
    assert "migrate MODULE:PIPELINE --states" in refused
    assert "is of version 1" in shell("run", "tills:pipeline", code=4)

    deploy_to(shell, NEW)
    assert "every stored state" in shell("migrate", "tills:pipeline", "--states")
    take_over(shell, WITHOUT, generation=2)
    assert rows(shell, SHOWN) == [(2, 2, 1, 1, 3)]
