"""What a command tells of the libraries that it uses."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog
from structlog.testing import LogCapture

from millwheel.cli.reporting import REPEAT_SECONDS, REPETITIVE, ToStructlog


@pytest.fixture
def told() -> Iterator[LogCapture]:
    capture = LogCapture()
    structlog.configure(processors=[capture])
    yield capture
    structlog.reset_defaults()


def test_what_a_pool_repeats_is_told_once_in_a_while_and_counted(told: LogCapture) -> None:
    now = 0.0
    logger = logging.Logger(REPETITIVE)
    logger.addHandler(ToStructlog(lambda: now))
    for number in range(3):
        logger.warning("attempt %d failed", number)
    logger.warning("something else")
    now = REPEAT_SECONDS
    logger.warning("attempt %d failed", 3)
    now = 2 * REPEAT_SECONDS
    logger.warning("attempt %d failed", 4)
    assert [(entry["event"], entry.get("untold")) for entry in told.entries] == [
        ("attempt 0 failed", None),
        ("something else", None),
        ("attempt 3 failed", 2),
        ("attempt 4 failed", None),
    ]


@pytest.mark.parametrize(
    ("name", "level"), [(REPETITIVE, logging.ERROR), ("another library", logging.WARNING)]
)
def test_all_else_is_told_each_time(told: LogCapture, name: str, level: int) -> None:
    logger = logging.Logger(name)
    logger.addHandler(ToStructlog(lambda: 0.0))
    for number in range(2):
        logger.log(level, "%d is broken", number)
    assert [entry["event"] for entry in told.entries] == ["0 is broken", "1 is broken"]
