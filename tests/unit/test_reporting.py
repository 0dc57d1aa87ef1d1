"""What a command tells of the libraries that it uses."""

from __future__ import annotations

import io
import json
import logging
import os

import pytest
import structlog
from structlog.testing import LogCapture

from millwheel.cli.reporting import REPEAT_SECONDS, REPETITIVE, ToStructlog, configure_log
from millwheel.errors import UsageError


@pytest.fixture
def told() -> LogCapture:
    capture = LogCapture()
    structlog.configure(processors=[capture])
    return capture


def test_what_a_pool_repeats_is_told_once_in_a_while_and_counted(told: LogCapture) -> None:
    now = 0.0
    logger = logging.Logger(REPETITIVE[0])
    logger.addHandler(ToStructlog(lambda: now))
    for number in range(3):
        logger.warning("attempt %d failed", number)
    logger.warning("something else")
    now = REPEAT_SECONDS
    logger.warning("attempt %d failed", 3)
    now = 2 * REPEAT_SECONDS
    logger.warning("attempt %d failed", 4)
    assert [(entry["event"], entry.get("suppressed")) for entry in told.entries] == [
        ("attempt 0 failed", None),
        ("something else", None),
        ("attempt 3 failed", 2),
        ("attempt 4 failed", None),
    ]


@pytest.mark.parametrize(
    ("name", "level"), [(REPETITIVE[0], logging.ERROR), ("another library", logging.WARNING)]
)
def test_all_else_is_told_each_time(told: LogCapture, name: str, level: int) -> None:
    logger = logging.Logger(name)
    logger.addHandler(ToStructlog(lambda: 0.0))
    for number in range(2):
        logger.log(level, "%d is broken", number)
    assert [entry["event"] for entry in told.entries] == ["0 is broken", "1 is broken"]


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    log = structlog.get_logger()
    for level in ("debug", "info", "warning"):
        getattr(log, level)("happened", what=level)
    return capsys.readouterr().err.splitlines()


def test_log_lines_are_text_or_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_log()
    assert [json.loads(line)["what"] for line in lines(capsys)] == ["info", "warning"]
    configure_log("text", "debug")
    found = lines(capsys)
    assert len(found) == 3
    assert all("happened" in line and "what=" in line for line in found)
    assert not any("\x1b" in line or line.startswith("{") for line in found)
    assert os.environ["MILLWHEEL_LOG_FORMAT"] == "text", "also for processes that it starts"


def test_variables_say_how_to_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MILLWHEEL_LOG_LEVEL", "warning")
    configure_log()
    assert len(lines(capsys)) == 1
    monkeypatch.setenv("MILLWHEEL_LOG_LEVEL", "loud")
    with pytest.raises(UsageError, match=r"MILLWHEEL_LOG_LEVEL must be one of debug, .*'loud'"):
        configure_log()


def test_a_line_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several workers may write to one file, and their lines must not mix."""
    written: list[str] = []

    class Stream(io.StringIO):
        def write(self, text: str) -> int:
            written.append(text)
            return len(text)

    monkeypatch.setattr("sys.stderr", Stream())
    former = structlog.get_config()
    try:
        configure_log("json", "info")
        structlog.get_logger().info("started")
    finally:
        structlog.configure(**former)
    (line,) = written
    assert json.loads(line)["event"] == "started"
    assert line.endswith("}\n")
