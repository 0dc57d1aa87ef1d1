"""``reprocess``, ``publish`` and ``switch``, as an operator types them."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from millwheel.store.copies.successors import begins_that_are_gone
from tests.support.shells import MODULE, Shell, expected, lines, on_a_terminal
from tests.support.store_sites import Schema

pytestmark = pytest.mark.newest

NEW_CODE = ("reprocess", "wheel", "--code", "better:pipeline", "--as", "wheel2")


@pytest.fixture
def shell(new_schema: Callable[[int], Schema]) -> Iterator[Shell]:
    schema = new_schema(18)
    with tempfile.TemporaryDirectory(prefix="mw-", dir="/tmp") as directory:
        better = MODULE.replace("value.text.split()", "value.text.upper().split()")
        other_state = MODULE.replace("LETTERS: int = 0", 'LETTERS: str = ""')
        inbox = MODULE.replace("JsonLines(INPUT)", "Inbox()").replace(
            "from millwheel import (", "from millwheel import (Inbox,"
        )
        no_table = MODULE.replace('Table("counts"', 'Table("others"')
        for name, text in {
            "wheel": MODULE, "better": better, "other_state": other_state, "inbox": inbox,
            "no_table": no_table,
        }.items():  # fmt: skip
            (Path(directory) / f"{name}.py").write_text(text)
        made = Shell(Path(directory), schema.url, schema.name)
        made.write(lines(60))
        yield made
        made.end()


def pipelines(shell: Shell) -> list[str]:
    return [one["name"] for one in shell.json("status")["pipelines"]]


def read(shell: Shell, text: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(shell.url()) as connection:
        return connection.execute(text).fetchall()


def test_new_code_takes_over(shell: Shell) -> None:
    shell("run", "wheel:pipeline")
    assert shell("publish", "wheel", "--in", "shown") == "shown.counts leads to wheel.counts\n"
    assert "nothing is new: 1 name in shown" in shell("publish", "wheel", "--in", "shown")
    made = shell(*NEW_CODE)
    assert "made wheel2: it begins with no state" in made
    assert "next: millwheel run better:pipeline --as wheel2" in made
    assert "'wheel2' was never run" in shell("switch", "wheel", "wheel2", code=2)
    assert "there is a pipeline 'wheel2' already: follow it with --wait" in shell(*NEW_CODE, code=2)
    found = shell.json(*NEW_CODE, "--run")
    assert found == {"pipeline": "wheel", "new": "wheel2", "made": False, "caught_up": True}
    foreseen = shell("switch", "wheel", "wheel2", "--dry-run")
    assert foreseen.splitlines() == [
        "shown.counts will lead to wheel2", "wheel2 has caught up with wheel"
    ]  # fmt: skip
    assert "confirm with --yes" in shell("switch", "wheel", "wheel2", code=2)
    assert read(shell, "SELECT bool_or(word = upper(word)) FROM shown.counts") == [(False,)]
    code, shown = on_a_terminal(shell, "switch", "wheel", "wheel2", answer="y\n")
    assert (code, "Switch from wheel to wheel2?" in shown) == (0, True)
    assert read(shell, "SELECT bool_and(word = upper(word)) FROM shown.counts") == [(True,)]
    (name,) = shell.json("published")["names"]
    assert (name["schema"], name["name"], name["pipeline"]) == ("shown", "counts", "wheel2")
    assert "shown.counts | wheel2   | counts" in shell("published")
    back = shell("switch", "wheel2", "wheel", "--yes", "--reason", "not yet")
    assert "back: millwheel switch wheel wheel2" in back
    log = shell.json("log", "--pipeline", "wheel2")
    assert (log[0]["verb"], log[0]["reason"]) == ("switch", "not yet")
    assert "readers use its tables as shown.counts" in shell("drop", "wheel", "--yes", code=2)
    shell("drop", "wheel2", "--yes")
    shell.environment["NAME"] = "wheel"
    assert shell.counts() == expected(lines(60))
    assert shell("unpublish", "wheel", "--in", "shown", "--yes") == "dropped shown.counts\n"
    shell("drop", "wheel", "--yes")


def test_workers_elsewhere_are_waited_for(shell: Shell) -> None:
    shell("run", "wheel:pipeline")
    shell("migrate", "wheel2")
    waiting = shell.start("reprocess", "wheel", "--as", "wheel2", "--wait")
    assert waiting.process.stderr is not None
    assert "wheel2 has not begun" in waiting.process.stderr.readline()
    shell("run", "better:pipeline", "--as", "wheel2", "--keep-open")
    assert waiting.process.poll() is None, "a window is open there that is closed in wheel"
    shell("run", "better:pipeline", "--as", "wheel2")
    code, stdout, stderr = waiting.end()
    assert (code, stdout.splitlines()) == (
        0,
        [
            "wheel2 has caught up with wheel",
            "next: millwheel diff wheel wheel2",
            "then: millwheel switch wheel wheel2",
        ],
    )
    assert "level with wheel" in stderr


def test_a_run_that_is_interrupted_is_resumed(shell: Shell) -> None:
    shell("run", "wheel:pipeline")
    shell.write([{"at": "2024-01-01T00:01:00+00:00", "text": "gate"}], append=True)
    running = shell.start(*NEW_CODE, "--run", GATE=str(shell.gate))
    assert running.process.stderr is not None
    for line in running.process.stderr:
        if '"started"' in line:
            break
    code, stdout, _ = running.end(signal.SIGINT)
    assert (code, stdout) == (
        130, "stopped; wheel2 has not caught up with wheel yet: run it again\n"
    )  # fmt: skip
    shell.gate.touch()
    assert "has caught up" in shell(*NEW_CODE, "--run", GATE=str(shell.gate))


def test_code_that_does_not_fit_the_state_of_a_savepoint(shell: Shell) -> None:
    shell("run", "wheel:pipeline", "--keep-open")
    shell("savepoint", "wheel", "one")
    code = ("reprocess", "wheel", "--code", "other_state:pipeline", "--as", "wheel2")
    refused = shell(*code, "--from", "one", code=4)
    assert "pipeline 'wheel@one', generation 1: this code differs in" in refused
    assert "state of 'words'" in refused
    assert "this code does not fit the state of wheel@one" in refused
    assert pipelines(shell) == ["wheel"]
    assert "there is no savepoint 'wheel@two'" in shell(*code, "--from", "two", code=2)
    shell(*NEW_CODE, "--from", "one")
    shell.write(lines(60, 60), append=True)
    shell("run", "wheel:pipeline")
    assert "has caught up" in shell(*NEW_CODE, "--run")
    words = "SELECT bool_or(word = upper(word)), bool_or(word = lower(word)) FROM wheel2.counts"
    assert read(shell, words) == [(True, True)], "the first rows were read by the former code"


def test_words_that_do_not_fit(shell: Shell) -> None:
    shell("run", "wheel:pipeline")
    shell("publish", "wheel", "--in", "shown")
    assert "give its code with --code" in shell("reprocess", "wheel", "--as", "wheel2", code=2)
    both = shell(*NEW_CODE, "--from", "one", "--from-start", code=2)
    assert "--from begins with a savepoint's state" in both
    inbox = shell("reprocess", "wheel", "--code", "inbox:pipeline", "--as", "wheel2", code=2)
    assert "these sources cannot be read again from their beginning: lines (an Inbox:" in inbox
    assert "millwheel savepoint wheel LABEL" in inbox
    assert pipelines(shell) == ["wheel"]
    made = shell("reprocess", "wheel", "--code", "no_table:pipeline", "--as", "wheel2")
    assert "the code has no table for shown.counts, which readers use" in made


def test_programs_must_send_to_the_other_inbox(shell: Shell) -> None:
    shell("migrate", "inbox:pipeline")
    shell("fork", "wheel", "--as", "wheel2")
    shell("publish", "wheel", "--in", "shown")
    foreseen = shell("switch", "wheel", "wheel2", "--dry-run")
    assert "send to stream lines of wheel must send to wheel2 from then on" in foreseen
    shell("fork", "wheel", "--as", "wheel3", "--tee")
    foreseen = shell("switch", "wheel", "wheel3", "--dry-run")
    assert "must send to wheel3 before wheel is dropped" in foreseen


def test_rows_of_a_source_that_are_gone(shell: Shell) -> None:
    """Workers tell with their heartbeats where a partition of Kafka begins."""
    shell("run", "wheel:pipeline")
    with psycopg.connect(shell.url()) as connection:
        connection.execute(
            """
            UPDATE wheel.key_interval AS k SET owner = w.id FROM wheel.worker AS w
            WHERE k.computation = (SELECT id FROM wheel.computation WHERE kind = 'injector')
            """
        )
        connection.execute(
            """
            UPDATE wheel.worker SET stopped = false, load = (
                SELECT jsonb_build_object('intervals', jsonb_object_agg(
                    id, '{"flow": {"log_start": 7, "pending": 0}}'::jsonb
                )) FROM wheel.key_interval
            )
            """
        )
    (gone,) = begins_that_are_gone(shell.url(), "wheel")
    assert gone.startswith("lines_injector (")
    assert gone.endswith(" begins at 7)")
    refused = shell(*NEW_CODE, code=2)
    assert "cannot be read again from their beginning: lines_injector" in refused
    assert "made wheel2" in shell(*NEW_CODE, "--anyway")
