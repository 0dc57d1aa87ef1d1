"""The main job on real processes: killed, and its Postgres killed, it ends as if nothing had been."""

import random

from tests.kill_flights import ROWS, FlightsRun, kill_postgres, workplace


def test_the_year_survives_kill_9_of_the_worker_and_of_postgres() -> None:
    draw = random.Random(20130101)
    points = sorted(draw.randrange(1, ROWS) for _ in range(4))
    with workplace() as directory:
        run = FlightsRun(directory)
        for rows in points:
            run.kill_at(rows)
        kill_postgres(run, directory)
        assert run.finish() == 0, run.output()[-4000:]
        verdict = run.judge()
    assert verdict.good, verdict
    assert verdict.hours == 19_486
    assert verdict.late_panes > 0, "no late flight found its window closed: nothing was amended"
