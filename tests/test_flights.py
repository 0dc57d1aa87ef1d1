"""The main job on real processes: killed, and its Postgres killed, it ends as if nothing had been."""

import random

import pytest

from tests.kill_flights import ROWS, FlightsRun, Verdict, kill_postgres, workplace


def _killed(kills: int, seed: int, *, postgres: bool) -> Verdict:
    """The year, with SIGKILL at so many seeded places."""
    draw = random.Random(seed)
    points = sorted(draw.randrange(1, ROWS) for _ in range(kills))
    with workplace() as directory:
        run = FlightsRun(directory)
        for rows in points:
            run.kill_at(rows)
        if postgres:
            kill_postgres(run, directory)
        assert run.finish() == 0, run.output()[-4000:]
        return run.judge()


def test_the_year_survives_kill_9_of_the_worker_and_of_postgres() -> None:
    verdict = _killed(4, 20130101, postgres=True)
    assert verdict.good, verdict
    assert verdict.hours == 19_486
    assert verdict.late_panes > 0, "no late flight found its window closed: nothing was amended"


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_the_year_survives_twenty_kills(seed: int) -> None:
    verdict = _killed(20, seed, postgres=seed % 2 == 0)
    assert verdict.good, verdict
