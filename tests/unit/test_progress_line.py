"""The line of progress fits each width, and keeps its most important figures."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len

from millwheel.cli.drawn_lines import DrawnLines
from millwheel.cli.progress_line import RecentSpeed, Speed, progress_line
from millwheel.core.clock import VirtualClock
from millwheel.core.model import MAX_TIME, MIN_TIME
from millwheel.services.hosting import RunProgress, lag_of
from tests.support.terminals import Screen


def progress(
    share: float | None = 0.79, *, processed: int = 456_400, seconds: float = 62.0, lag: float = 3.2
) -> RunProgress:
    return RunProgress(
        processed, 300_000, 9.0, 1_704_067_260_000_000, 9_800, share, seconds, 4, lag
    )


def line(width: int, share: float | None = 0.79, name: str = "zeitgeist", **more: float) -> str:
    found = progress(share, **more)  # type: ignore[arg-type]
    return progress_line(name, found, Speed(259_245.0, 1.5), width, lambda text, style: text)


@pytest.mark.parametrize("share", [None, 0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", ["a", "zeitgeist", "名" * 40])
def test_it_fits(share: float | None, name: str) -> None:
    for width in (*range(10, 140), 400):
        assert cell_len(line(width, share, name)) < width


def test_a_wide_terminal_has_all_figures() -> None:
    assert line(150).replace("━", "").replace("─", "") == (
        "zeitgeist  79% · 259,245/s · lag 3.2 s · 1.5 s left · backlog 9,800 · 4 workers · "
        "456,400 records · 1:02 · event time 2024-01-01 00:01:00"
    )
    assert line(150, None).startswith("zeitgeist 259,245/s · lag 3.2 s · ")


def test_the_bar_is_the_share() -> None:
    for share in (0.0, 0.25, 1.0):
        drawn = line(200, share)
        assert drawn.count("━") == int(40 * share)
        assert drawn.count("━") + drawn.count("─") == 40


def test_a_narrow_terminal_has_the_first_figures() -> None:
    assert line(60) == "zeitgeist ━━━━━━── 79% · 259,245/s · lag 3.2 s · 1.5 s left"
    assert line(20) == "zeitgeist 79% · 25…"


def test_the_lag_of_old_input_is_left_out() -> None:
    assert "lag" not in line(200, lag=86_400.0 * 8)
    assert "event time 2024" in line(200, lag=86_400.0 * 8)


def test_event_time_that_has_not_begun_or_has_ended_has_no_lag() -> None:
    clock = VirtualClock(10_000_000)
    assert [lag_of(at, clock) for at in (MIN_TIME, 7_500_000, MAX_TIME)] == [None, 2.5, None]


def test_the_speed_is_that_of_the_last_seconds() -> None:
    speed = RecentSpeed()
    for number in range(20):
        found = speed.of(progress(0.5 + number / 100, processed=number * number, seconds=number))
    assert found.per_second == (19**2 - 12**2) / 7
    assert found.seconds_left == pytest.approx(31.0)
    assert RecentSpeed().of(progress()) == Speed(9.0, None)


def test_output_appears_above_the_drawing_and_nothing_of_it_stays() -> None:
    out = io.StringIO()
    drawn = DrawnLines(out)
    drawn.draw(["one", "two", "three"])
    drawn.draw(["ten", "four"])
    drawn.print_above(out, "said\n")
    assert Screen(20).feed(_raw(out)).lines == ["said", "ten", "four"]
    drawn.draw(["five"])
    assert Screen(20).feed(_raw(out)).lines == ["said", "five"]
    drawn.end(keep=False)
    assert Screen(20).feed(_raw(out)).lines == ["said"]
    drawn.draw(["six", "seven"])
    drawn.end(keep=True)
    assert Screen(20).feed(_raw(out) + "$").lines == ["said", "six", "seven", "$"]


def _raw(out: io.StringIO) -> str:
    """As a terminal gets it: it returns the carriage for a line feed."""
    return out.getvalue().replace("\n", "\r\n")
