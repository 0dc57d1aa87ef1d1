"""A hundred histories of followed files; `python -m tests.files` runs as many as wanted."""

from __future__ import annotations

import pytest

from tests.files.__main__ import WORLDS, run
from tests.files.histories import History, failure_of, shorten

SEEDS = 100
MANY_SEEDS = 10_000
AT_ONCE = 50


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_what_is_read_is_what_was_written(first: int) -> None:
    wrong = [report for seed in range(first, first + AT_ONCE) if (report := run(seed)) is not None]
    assert not wrong, "\n".join(wrong)


@pytest.mark.soak
def test_many_histories() -> None:
    wrong = [report for seed in range(MANY_SEEDS) if (report := run(seed)) is not None]
    assert not wrong, "\n".join(wrong)


def test_a_history_that_fails_is_shortened() -> None:
    events = tuple((name, 0, 0) for name in "abcdefghij")
    history = History("logs", events, 1, 24, 1)

    def fails(tried: History) -> bool:
        names = [name for name, *_ in tried.events]
        return "c" in names and "h" in names

    assert [name for name, *_ in shorten(history, fails).events] == ["c", "h"]


@pytest.mark.parametrize("stores", [0, 1])
def test_a_file_that_is_put_back_keeps_the_numbers_of_its_rows(stores: int) -> None:
    """It is continued under another number: no stored position may have rows before it to come."""
    events = (
        ("append", 2, 0), ("rename", 1, 0), ("append", 3, 0), ("read all", 0, 0), ("commit", 2, 0),
        ("rename", 0, 0), ("put back", stores, 1),
    )  # fmt: skip
    assert failure_of(History("logs", events, 4096, 4096, 100), WORLDS["logs"]) is None
