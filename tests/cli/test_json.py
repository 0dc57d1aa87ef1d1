"""``--json``: standard output is one document, and everything for people goes elsewhere."""

from __future__ import annotations

import json
import shlex
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.parsed_commands import commands
from tests.support.shells import MODULE, Shell, lines
from tests.support.store_sites import Schema

WITHOUT_JSON = {
    "worker": "it runs on; its figures are in the log, in `status` and behind --http",
    "dead-letters export": "it prints JSON Lines already",
    "query explain": "it prints sentences, and no figures",
    "new": "it writes files, and prints commands to try",
    "dev": "it runs on, and prints rows for a reader",
    "ui": "it runs on; each page has its figures as JSON",
    "stop": "it prints no figures",
    "url": "it prints one word",
    "spark run": "its figures are in the log and in `status`",
    "spark aggregate": "its figures are in the log",
    "spark report": "the function that it calls prints what it wants",
}

LATER = "timestamp=lambda line: line.at, lateness=timedelta(seconds=9), on"
"""Code of another generation."""

COMMANDS = {
    path.removeprefix("millwheel "): one for path, one in commands() if not hasattr(one, "commands")
}


def test_each_command_has_json_or_a_reason_against_it() -> None:
    with_json = {
        path for path, one in COMMANDS.items() if any("--json" in p.opts for p in one.params)
    }
    assert with_json | WITHOUT_JSON.keys() == COMMANDS.keys()
    assert with_json & WITHOUT_JSON.keys() == set()


@pytest.fixture
def shell(new_schema: Callable[[int], Schema]) -> Iterator[Shell]:
    schema = new_schema(18)
    with tempfile.TemporaryDirectory(prefix="mw-", dir="/tmp") as directory:
        (Path(directory) / "wheel.py").write_text(MODULE)
        later = MODULE.replace("timestamp=lambda line: line.at, on", LATER)
        (Path(directory) / "later.py").write_text(later)
        (Path(directory) / "loud.sql").write_text("INSERT INTO loud SELECT text FROM lines;")
        (Path(directory) / "soft.sql").write_text("INSERT INTO soft SELECT text FROM lines;")
        made = Shell(Path(directory), schema.url, schema.name)
        yield made
        made.end()


def document(shell: Shell, words: str) -> Any:
    """What a command prints with ``--json``; it is one document, whatever its exit code is."""
    _, stdout, stderr = shell.start(*shlex.split(words), "--json").end()
    assert stdout, stderr
    assert "Traceback" not in stderr
    return json.loads(stdout)


def test_commands_print_one_document(shell: Shell) -> None:
    rows = lines(40)
    rows[7]["text"] = "boom"
    shell.write(rows)
    done: dict[str, Any] = {}

    def run(name: str, words: str = "", /, **wanted: object) -> Any:
        found = document(shell, f"{name} {words}")
        assert name in COMMANDS
        picked = {key: found[key] for key in wanted} if isinstance(found, dict) else {}
        assert picked == wanted, name
        done[name] = found
        return found

    run("graph", "wheel:pipeline", pipeline="wheel")
    run("migrate", "wheel:pipeline", version="0022", streams=[], states=None)
    run("run", "wheel:forgiving --keep-open", outcome="complete", read=40)
    run("plan", "wheel:pipeline", pipeline="wheel", refused=False)
    assert run("status")["pipelines"][0]["name"] == "wheel"
    assert run("sql", "'SELECT 1 AS one'") == [{"one": 1}]
    (letter,) = run("dead-letters list")
    assert run("dead-letters show", str(letter["id"]))["id"] == letter["id"]
    assert run("state get", "words boom")["computation"] == "words"
    shell("run", "later:forgiving", "--keep-open")
    run("rollback", "wheel:forgiving", pipeline="wheel", deployed=3)
    found = run("query submit", "wheel:forgiving loud.sql", query="loud", outcome="submitted")
    assert found["workers"] == 0
    run("query replace", "wheel:forgiving loud soft.sql --yes", outcome="replaced")
    assert [one["name"] for one in run("query list", "wheel:forgiving")["queries"]] == ["loud"]
    run("query drop", "wheel:forgiving loud --yes", query="loud")

    worker = shell.start("worker", "wheel:forgiving", "--keep-open", PLACEMENT="0.1")
    worker.until(lambda line: line["event"] == "started")
    (interval, *_) = [
        one for one in run("intervals list")["intervals"] if one["computation"] == "words"
    ]
    owner = shell.json("status")["pipelines"][0]["workers"][0]["id"]
    number = interval["id"]
    run("intervals move", f"{number} {owner}", outcome="moved", interval=number)
    found = run("intervals split", str(number), outcome="split", interval=number)
    assert 0 < found["at"] < 65_536
    upper = max(one["id"] for one in shell.json("intervals", "list")["intervals"])
    run("intervals merge", f"{number} {upper}", outcome="merged", lower=number, upper=upper)
    run("state set", """words a --value '{"LETTERS": 3}'""", outcomes={"done": 1})
    run("state delete", "words a", outcomes={"done": 1})
    assert run("timers cancel", "words a")["outcomes"].keys() <= {"refused", "failed"}
    assert run("timers fire", "words a")["outcomes"].keys() <= {"refused", "failed"}
    found = run("dead-letters retry", f"{letter['id']} --dry-run", batch=None, outcomes={})
    assert found["matched"]["ids"] == [letter["id"]]
    assert sum(run("dead-letters retry", str(letter["id"]))["outcomes"].values()) == 1
    assert worker.end(signal.SIGTERM)[0] == 143

    run("dead-letters discard", "--all --yes", discarded=1)
    run("set-aside", "lines_injector 3", pipeline="wheel")
    assert run("doctor", "wheel", missing=0)["findings"]
    run("log", f"--withdraw {done['set-aside']['batch']}", withdrawn=1)
    run("pause", "wheel", paused=True, changed=["lines_injector"], workers=0)
    run("resume", "wheel lines_injector", paused=False, unchanged=[])
    assert run("log")[0]["verb"] == "resume"
    run("outputs", "wheel off --yes", outputs="off", changed=True, workers=0)
    run("savepoint", "wheel one --keep 1d", name="wheel@one", origin="wheel", dropped=[])
    assert [one["name"] for one in run("savepoints list")["savepoints"]] == ["wheel@one"]
    run("savepoints show", "wheel@one", pipeline="wheel", label="one", is_expired=False)
    run("fork", "wheel --as wheel2 --from one", name="wheel2", origin="wheel@one")
    run("restore", "wheel one --confirm wheel", replaced="wheel@replaced-1", sessions=0)
    run("savepoints drop", "wheel@replaced-1 --yes", name="wheel@replaced-1")
    run("remove", "wheel counts_to_counts --yes", removed=["counts_to_counts"])
    assert run("drop", "wheel --yes", pipeline="wheel")["tables"] > 10

    elsewhere = {"spark take", "spark return", "diff"}  # tests/spark and test_diff.py run them
    assert COMMANDS.keys() - done.keys() - WITHOUT_JSON.keys() == elsewhere
