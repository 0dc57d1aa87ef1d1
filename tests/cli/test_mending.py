"""Mending a running pipeline by the command line: dead letters, states, timers, and the log of it
all."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.mended import append
from tests.support.servers import database
from tests.support.shells import Shell


@pytest.fixture
def shell(postgres_url: Callable[[int], str], tmp_path: Path) -> Iterator[Shell]:
    """A directory with a running service of `tests.faults.mended`: accounts 0 to 4, 10 dead
    letters."""
    with database(postgres_url(18)) as url:
        made = Shell(tmp_path, url, "mended")
        made.environment |= {
            "MENDED_INPUT": str(tmp_path),
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "MILLWHEEL_ACTOR": "ada",
        }
        append(tmp_path, range(20), keys=5)
        made("migrate", "mended")
        worker = made.start("worker", "tests.faults.mended:pipeline")
        yield made
        worker.end(signal.SIGTERM)


def not_done(shell: Shell, *arguments: str) -> str:
    """A request that is refused, or fails: what the command says."""
    code, stdout, stderr = shell.start(*arguments).end()
    assert code == 1, (stdout, stderr)
    return stdout


def letters(shell: Shell) -> list[dict[str, object]]:
    found: list[dict[str, object]] = shell.json("dead-letters", "list")
    return found


def test_an_operator_mends_what_has_failed(shell: Shell) -> None:
    deadline = time.monotonic() + 60
    while shell.start("dead-letters", "show", "10").end()[0]:
        assert time.monotonic() < deadline
        time.sleep(0.2)

    # What is it?
    (kind,) = shell.json("dead-letters", "list", "--group-by", "error")
    assert (kind["letters"], kind["keys"], kind["error"]) == (10, 5, "ValueError: N is odd")
    assert "N is odd" in shell("dead-letters", "list", "--group-by", "error")
    of_three = shell.json("dead-letters", "list", "--key", "3", "--error", "IS ODD")
    assert [json.loads(letter["value"])["number"] for letter in of_three] == [17, 7]
    exported = shell("dead-letters", "export", "--key", "3").splitlines()
    assert [json.loads(line)["id"] for line in exported] == [letter["id"] for letter in of_three][
        ::-1
    ]

    # Again, while it is not mended: nothing changes but the number of attempts.
    number = str(of_three[1]["id"])
    told = not_done(shell, "dead-letters", "retry", number, "--reason", "trying")
    assert "failed: 1 (ValueError: 7 is odd)" in told
    assert shell.json("dead-letters", "show", number)["attempts"] == 2

    # Another value for one, and then the rest.
    told = shell("dead-letters", "retry", number, "--edit", '{"account": 3, "number": 8}')
    assert "done: 1 (attempt 3)" in told
    told = shell("dead-letters", "retry", "--error", "odd", "--edit", "{}", code=2)
    assert "9 dead letters match" in told
    (shell.directory / "mended").touch()
    assert "9 dead letters match" in shell("dead-letters", "retry", "--all", "--dry-run")
    assert len(letters(shell)) == 9
    assert "done: 9" in shell("dead-letters", "retry", "--computation", "book", "--rate", "100")
    assert letters(shell) == []
    assert "say which dead letters" in shell("dead-letters", "retry", code=2)

    # A state.
    account = shell.json("state", "get", "book", "3")["state"]
    assert account == {"total": 6 + 8 + 16 + 17, "booked": 4, "edits": 0}
    told = not_done(
        shell, "state", "set", "book", "3", "--merge", '{"edits": 1}', "--if", '{"edits": 9}'
    )
    assert "refused: 1 (the condition does not hold" in told
    told = shell("state", "set", "book", "3", "--merge", '{"edits": 1}', "--if", '{"edits": 0}')
    assert 'was {"total":47,"booked":4,"edits":0}' in told
    assert shell.json("state", "get", "book", "3")["state"]["edits"] == 1
    told = not_done(shell, "state", "set", "book", "3", "--value", '{"total": "much"}')
    assert "cannot be the state" in told
    assert "no computation 'bok'" in shell("state", "delete", "bok", "3", code=2)
    assert "takes JSON" in shell("state", "set", "book", "3", "--merge", "{", code=2)
    assert "done: 1" in shell("state", "delete", "book", "3", "--reason", "it was wrong")
    assert shell.json("state", "get", "book", "3")["state"] is None
    told = not_done(shell, "timers", "cancel", "book", "3", "reminder")
    assert "no watermark timer with the tag 'reminder'" in told
    told = not_done(shell, "timers", "fire", "book", "3", "reminder", "--kind", "wall")
    assert "no wall timer with the tag 'reminder'" in told

    # Who did what?
    shell("pause", "mended", "--reason", "looking")
    entries = shell.json("log")
    assert [entry["verb"] for entry in entries] == [
        "pause", "fire_timer", "cancel_timer", "delete_state", "set_state", "set_state",
        "set_state", "retry", "retry", "retry",
    ]  # fmt: skip
    assert {entry["actor"] for entry in entries} == {"ada"}
    assert entries[3]["reason"] == "it was wrong"
    assert (entries[7]["requests"], entries[7]["done"]) == (9, 9)
    assert "it was wrong" in shell("log")
