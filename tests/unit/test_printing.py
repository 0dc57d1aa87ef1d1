"""Output of commands: nothing that came from outside moves a terminal."""

from __future__ import annotations

import json
import sys

import pytest

from millwheel.cli.fitted_tables import print_table
from millwheel.cli.printing import confirm, print_json, print_json_line, print_rows_as_json, say
from millwheel.core.quantities import count_of
from millwheel.errors import UsageError

HOSTILE = "a\x1b]0;owned\x07\x9b31m\u202eb"
"""Sets the title of a terminal, its colour (in one byte), and the direction of writing."""


def test_no_control_character_reaches_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"key {HOSTILE}\n\tin two lines")
    print_table(["key"], [[HOSTILE]])
    print_json({"key": HOSTILE})
    print_json_line({"key": HOSTILE})
    print_rows_as_json(["key"], [[HOSTILE]])
    shown = capsys.readouterr().out
    assert "key a\\x1b]0;owned\\x07\\x9b31m\\u202eb\n\tin two lines" in shown
    assert all(c.isprintable() or c in "\n\t" for c in shown)


def test_json_has_the_value_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"key": HOSTILE, "plain": "ä€𝄞\U000e0001"}
    print_json(value)
    assert json.loads(capsys.readouterr().out) == value


def test_a_count_fits_its_number() -> None:
    assert [count_of(n, "dead letter") for n in (0, 1, 2000)] == [
        "0 dead letters", "1 dead letter", "2,000 dead letters",
    ]  # fmt: skip


def test_what_is_deleted_is_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    confirm("it deletes", "Delete?", sure=True)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    with pytest.raises(UsageError, match="it deletes; confirm with --yes"):
        confirm("it deletes", "Delete?", sure=False)
