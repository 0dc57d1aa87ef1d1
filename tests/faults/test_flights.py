"""The main job on real processes: killed, and its Postgres killed, it ends as if nothing had
been."""

import random
from datetime import UTC, datetime

import pytest

from tests.faults.kill_flights import FlightsRun, Verdict, kill_postgres, workplace


def _killed(kills: int, seed: int, *, postgres: bool, until: datetime | None = None) -> Verdict:
    """The year or the first part of it, with SIGKILL at so many seeded places."""
    draw = random.Random(seed)
    with workplace() as directory:
        run = FlightsRun(directory, until)
        for rows in sorted(draw.randrange(1, run.rows) for _ in range(kills)):
            run.kill_at(rows)
        if postgres:
            kill_postgres(run, directory)
        assert run.finish() == 0, run.output()[-4000:]
        return run.judge()


@pytest.mark.soak
def test_two_months_survive_kill_9_of_the_worker_and_of_postgres() -> None:
    verdict = _killed(3, 20130101, postgres=True, until=datetime(2013, 3, 1, tzinfo=UTC))
    assert verdict.good, verdict
    assert verdict.hours > 3_000
    assert verdict.late_panes > 0, "no late flight found its window closed: nothing was amended"


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_the_year_survives_twenty_kills(seed: int) -> None:
    verdict = _killed(20, seed, postgres=seed % 2 == 0)
    assert verdict.good, verdict
    assert verdict.hours == 19_486
