"""Keys in messages and log lines, shown or redacted."""

from __future__ import annotations

import pytest
import structlog

from millwheel.core.clock import VirtualClock
from millwheel.core.redaction import VARIABLE, redacts, shown_key
from millwheel.runtime.lane.dead_letter_log import DeadLetterLog
from millwheel.store.port.requests import DeadLetter

LETTER = DeadLetter(
    1,
    7,
    "visits",
    b"",
    b'"ada@example.org"',
    "{}",
    0,
    "log 1 number 2",
    "ValueError: bad",
    "",
    1,
    0,
)


def logged() -> str:
    log = structlog.get_logger()
    with structlog.testing.capture_logs() as lines:
        DeadLetterLog(log, VirtualClock(), {}).add([LETTER])
    (line,) = lines
    return str(line["key"])


def test_keys_are_shown() -> None:
    assert shown_key("ada@example.org") == "'ada@example.org'"
    assert logged() == '"ada@example.org"'


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("0", False), ("", False)])
def test_redaction_is_switched_on_by_a_variable(
    monkeypatch: pytest.MonkeyPatch, value: str, expected: bool
) -> None:
    monkeypatch.setenv(VARIABLE, value)
    assert redacts() is expected


def test_a_redacted_key_is_the_same_hash_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    hash_ = shown_key("ada@example.org")
    assert hash_.startswith("key#")
    assert "ada" not in hash_
    assert logged() == hash_
    assert shown_key(("ada@example.org", 1)) != hash_
