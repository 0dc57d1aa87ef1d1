"""The command line, as processes of its own on a real Postgres.

A module written to a temporary directory holds the pipelines; what varies between tests
(the pipeline's name, its input, which types it has) comes to it by the environment. Its
`Words` waits at a record with the word "gate" until a file appears: so a test can do
things to a run that is certainly in the middle.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import structlog

from millwheel import JsonLines, Pipeline, Stream
from millwheel.cli.display import log_boundedness
from millwheel.sinks import Discard
from millwheel.store import embedded
from millwheel.store.embedded import binaries
from tests.support.servers import reachable_directory
from tests.support.shells import MODULE, START, Rows, Shell, expected, lines, on_a_terminal
from tests.support.store_sites import Schema


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """Where the module is. The server's account must reach the stores in it, as it cannot
    with pytest's own temporary directories."""
    path = reachable_directory("mw-cli-")
    (path / "wheel.py").write_text(MODULE)
    yield path
    shutil.rmtree(path)


def _name(request: pytest.FixtureRequest) -> str:
    """A name for the files of a test."""
    return str(request.node.name.split("[")[0][:48])


@pytest.fixture
def shell(
    directory: Path, new_schema: Callable[[int], Schema], request: pytest.FixtureRequest
) -> Iterator[Shell]:
    """Commands on a Postgres that somebody else runs, where the pipeline's schema is there."""
    schema = new_schema(18)
    shell = Shell(directory, schema.url, _name(request), schema.name)
    yield shell
    shell.end()


@pytest.fixture
def own_store(directory: Path) -> Iterator[Path]:
    """A store without a server, of one test alone."""
    path = Path(tempfile.mkdtemp(dir=directory)) / "store"
    path.parent.chmod(0o755)
    yield path
    embedded.remove(path)


@pytest.fixture
def own_shell(directory: Path, own_store: Path, request: pytest.FixtureRequest) -> Iterator[Shell]:
    """Commands on a store of the test's own."""
    shell = Shell(directory, str(own_store), _name(request))
    yield shell
    shell.end()


# ------------------------------------------------------------------------ nothing is started


def test_help_and_version_load_neither_postgres_nor_spark(directory: Path) -> None:
    check = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from millwheel.cli.main import app\n"
        "shown = CliRunner().invoke(app, ['--help']).output\n"
        "assert all(c in shown for c in ('run', 'status', 'dead-letters', 'spark')), shown\n"
        "assert CliRunner().invoke(app, ['--version']).output == 'millwheel 0.1.0\\n'\n"
        "loaded = {'psycopg', 'sqlalchemy', 'alembic', 'pyspark', 'structlog'} & {*sys.modules}\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", check], cwd=directory, check=True)


@pytest.mark.parametrize(
    ("target", "code", "message"),
    [
        ("wheel", 2, "not of the form MODULE:PIPELINE"),
        ("nothing:pipeline", 2, "there is no module 'nothing' in "),
        ("wheel.py:pipeline", 2, "Give the name of the module, not of its file: wheel:…"),
        (
            "wheel:pipelin",
            2,
            "has no 'pipelin'. Pipelines in this module: build, forgiving, cycle",
        ),
        ("wheel:LINES", 2, "'wheel:LINES' is a Stream, not a Pipeline"),
        ("wheel:text", 2, "cannot be called without arguments"),
        ("wheel:Letters", 2, "returns a Letters, not a Pipeline"),
        ("wheel:cycle", 2, "the graph has a cycle: words → back → words"),
        ("wheel:unwritten", 2, "reads stream 'nobodys', but nothing writes it"),
        ("wheel:fails", 6, "wheel:fails failed: KeyError: 'missing'"),
    ],
)
def test_what_is_no_pipeline_is_refused_with_what_there_is(
    own_shell: Shell, own_store: Path, target: str, code: int, message: str
) -> None:
    assert message in own_shell("run", target, code=code)
    assert not own_store.exists()


def test_an_error_in_the_users_module_shows_its_line(shell: Shell) -> None:
    module = shell.directory / "broken.py"
    module.write_text("import json\n\nSETTINGS = json.loads('nope')\n")
    told = shell("run", "broken:pipeline", code=6)
    assert told.startswith("error: importing 'broken' failed: json.decoder.JSONDecodeError: ")
    assert f"at {module}:3 in <module>: SETTINGS = json.loads('nope')" in told

    module.write_text("def f(:\n    pass\n")
    told = shell("graph", "broken:pipeline", code=6)
    assert f'File "{module}", line 1' in told
    assert "SyntaxError" in told

    module.write_text("import not_installed\n")
    code, _, told = shell.start("graph", "broken:pipeline", "--debug").end()
    assert code == 6
    assert "Traceback" in told
    assert "No module named 'not_installed'" in told
    assert f"at {module}:1" in told


def test_a_graph_is_printed_as_text_mermaid_and_json(shell: Shell) -> None:
    assert "computation words\n    reads lines by text" in shell("graph", "wheel:pipeline")
    assert "lines_injector -->|lines| words" in shell("graph", "wheel:build", "--mermaid")
    found = shell.json("graph", "wheel:pipeline")
    assert found["pipeline"] == shell.name
    assert found["nodes"]["words"]["inputs"] == [["lines", "text"]]


@pytest.mark.parametrize(
    ("address", "code"),
    [("postgresql://me:s3cret@127.0.0.1:1/wheel", 7), ("postgresql://me:s3cr/et@host/wheel", 2)],
)
def test_a_store_that_cannot_be_reached_is_named_without_its_secret(
    shell: Shell, address: str, code: int
) -> None:
    told = shell("run", "wheel:pipeline", "--store", address, code=code)
    assert "s3cr" not in told
    assert code == 2 or "postgresql://me:***@127.0.0.1:1/wheel cannot be reached" in told


def test_looking_into_a_store_makes_none(own_shell: Shell, own_store: Path) -> None:
    assert "there is no store in" in own_shell("status", code=2)
    assert "there is no store in" in own_shell("stop", str(own_store), code=2)
    assert not own_store.exists()


# ------------------------------------------------------------------------------- run to the end


def test_run_then_nothing_to_do(shell: Shell) -> None:
    shell.cold = True
    rows = lines(300)
    shell.write(rows)
    code, told, errors = shell.start("run", "wheel:pipeline", PYTHONPROFILEIMPORTTIME="1").end()
    assert code == 0, errors
    assert told.startswith("wheel: complete (this run: ")
    assert shell.counts() == expected(rows)
    imported = {line.rpartition("|")[2].strip() for line in errors.splitlines()}
    assert "millwheel.pipeline" in imported
    # Half of the time that a command takes to start.
    assert not {"sqlalchemy", "alembic", "millwheel.sql"} & imported
    shell.cold = False
    assert shell("run", "wheel:build") == "wheel: complete, nothing to do\n"
    found = shell.json("run", "wheel:pipeline")
    assert found["outcome"] == "nothing to do"
    assert found["processed"] == found["read"] == 0
    assert found["low_watermark"] == "infinity"


def test_a_grown_file_goes_on_and_a_changed_one_is_refused(shell: Shell) -> None:
    first, second = lines(200), lines(150, first=200)
    shell.write(first)
    found = shell.json("run", "wheel:pipeline", "--keep-open")
    assert (found["outcome"], found["read"]) == ("complete", 200)
    assert sum(shell.counts().values()) < 600, "the last window must stay open"

    shell.write(second, append=True)
    found = shell.json("run", "wheel:pipeline", "--keep-open")
    assert (found["outcome"], found["read"]) == ("complete", 150)
    shell("run", "wheel:pipeline")
    assert shell.counts() == expected(first, second)

    text = shell.input.read_text()
    shell.input.write_text(text.replace("ant", "owl", 1))
    told = shell("run", "wheel:pipeline", code=5)
    assert str(shell.input) in told
    assert "changed" in told


def test_every_record_twice_changes_nothing_and_is_counted(shell: Shell) -> None:
    rows = lines(300)
    shell.write(rows)
    found = shell.json("run", "wheel:pipeline", "--inject-twice")
    assert found["duplicates_dropped"] == 300
    assert shell.counts() == expected(rows)
    (status,) = shell.json("status", shell.name)["pipelines"]
    (words,) = [c for c in status["computations"] if c["name"] == "words"]
    assert (words["processed"], words["duplicates_dropped"]) == (300, 300)
    assert words["bloom_maybes"] >= 0


# ------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"at": "2024-01-01T00:01:00Z", "text": 7}, "Expected `str`, got `int`"),
        ({"at": "2024-01-01T00:01:00", "text": "x"}, "has no time zone"),
        ("{", "line 21"),
    ],
)
def test_a_bad_row_stops_the_run_with_its_line(shell: Shell, row: Any, message: str) -> None:
    shell.write([*lines(20), row])
    told = shell("run", "wheel:pipeline", code=5)
    assert message in told
    assert f"{shell.input}, line 21" in told


def test_a_file_that_cannot_be_written_ends_the_run_and_nothing_is_lost(
    shell: Shell, tmp_path: Path
) -> None:
    """As a full disk does, but for the waiting. With room the next run has each line once."""
    rows = lines(400)
    shell.write(rows)
    output = tmp_path / "words"
    told = shell("run", "wheel:to_files", code=11, FILE_BYTES="5000", OUTPUT=str(output))
    (part,) = output.iterdir()
    assert f"{part} cannot be written: File too large. Mend that, and start again" in told
    assert "bug" not in told
    shell("run", "wheel:to_files", OUTPUT=str(output))
    written = Counter(json.loads(line) for line in part.read_text().splitlines())
    assert written == Counter(word for row in rows for word in row["text"].split())


def test_output_is_not_written_through_a_symbolic_link(shell: Shell, tmp_path: Path) -> None:
    rows = lines(20)
    shell.write(rows)
    output = tmp_path / "words"
    shell("run", "wheel:to_files", "--keep-open", OUTPUT=str(output))
    (part,) = output.iterdir()
    victim = tmp_path / "victim.txt"
    part.rename(victim)
    before = victim.read_bytes()
    part.symlink_to(victim)
    shell.write(lines(20, first=20), append=True)
    told = shell("run", "wheel:to_files", "--keep-open", code=11, OUTPUT=str(output))
    assert f"{part} is a symbolic link to {victim}" in told
    assert victim.read_bytes() == before
    part.unlink()
    victim.rename(part)
    shell("run", "wheel:to_files", "--keep-open", OUTPUT=str(output))
    assert part.read_bytes().startswith(before)
    assert len(part.read_bytes()) > len(before)


def test_user_code_that_fails_stops_the_run_with_its_line(shell: Shell) -> None:
    shell.write([*lines(20), {"at": "2024-01-01T00:01:00Z", "text": "boom"}])
    told = shell("run", "wheel:pipeline", code=6)
    assert "'words' failed on a record of stream 'lines', key 'boom'" in told
    assert "LookupError: no such word" in told
    assert f"{shell.directory / 'wheel.py'}:" in told
    assert 'raise LookupError("no such word")' in told


def test_an_output_older_than_promised_is_refused(shell: Shell) -> None:
    shell.write(lines(100))
    shell("run", "wheel:pipeline", "--keep-open")
    shell.write([{"at": (START + timedelta(hours=1)).isoformat(), "text": "old"}], append=True)
    told = shell("run", "wheel:pipeline", code=6)
    assert "an output of stream 'words' has the timestamp 2000-01-01" in told
    assert "older than both its input" in told


def test_what_does_not_fit_the_deployed_pipeline_is_refused(shell: Shell) -> None:
    shell.write(lines(20))
    shell("run", "wheel:pipeline")
    other = MODULE.replace("Tumbling(minutes=1)", "Tumbling(minutes=2)")
    (shell.directory / "wider.py").write_text(other)
    told = shell("run", "wider:pipeline", code=4)
    assert "computation 'windowed → counts', windows: another rule that stored state" in told
    assert f"millwheel drop {shell.name}" in told

    other = MODULE.replace("LETTERS", "characters")
    (shell.directory / "renamed.py").write_text(other)
    told = shell("run", "renamed:pipeline", code=4)
    assert "state of 'words': the type changed without a new version" in told
    assert "characters" in told
    assert "Set version = 2" in told

    other = MODULE.replace("text: str\n", "text: str\n    extra: int\n")
    (shell.directory / "extended.py").write_text(other)
    told = shell("run", "extended:pipeline", code=4)
    assert "stream 'lines': the type changed without a new version" in told


def test_a_schema_that_is_behind_is_refused_until_it_is_migrated(shell: Shell) -> None:
    rows = lines(20)
    shell.write(rows)
    shell("drop", shell.name, "--yes")
    told = shell("run", "wheel:pipeline", code=3)
    assert f"Run: millwheel migrate {shell.name} --store " in told
    assert shell.url().rpartition("/")[2] in told
    assert "created schema" in shell("migrate", "wheel:pipeline")
    assert "created, but never run" in shell("status", shell.name)
    shell("run", "wheel:pipeline")
    assert shell.counts() == expected(rows)
    assert "already" in shell("migrate", shell.name)


# ------------------------------------------------------------------------- in the middle of a run


def gated(shell: Shell, count: int = 400) -> Rows:
    """Input whose last but one row waits for the gate."""
    rows = lines(count)
    rows[-2]["text"] = "gate"
    shell.write(rows)
    shell.environment["GATE"] = str(shell.gate)
    return rows


def test_a_run_that_is_stopped_goes_on_where_it_was(shell: Shell) -> None:
    rows = gated(shell)
    running = shell.start("run", "wheel:pipeline")
    running.until_processed(200)
    code, stdout, _ = running.end(signal.SIGTERM)
    assert code == 143
    assert stdout.startswith("wheel: stopped; run again")

    (status,) = shell.json("status", shell.name)["pipelines"]
    assert status["workers"] == []
    processed = status["computations"][1]["processed"]
    assert 0 < processed < 400

    running = shell.start("run", "wheel:pipeline", "--json")
    running.until(lambda line: line["event"] == "progress")
    code, stdout, _ = running.end(signal.SIGINT)
    assert code == 130
    found = json.loads(stdout)
    assert (found["outcome"], found["signal"]) == ("stopped", "SIGINT")

    shell.gate.touch()
    assert shell.json("run", "wheel:pipeline")["outcome"] == "complete"
    assert shell.counts() == expected(rows)


def test_a_second_signal_ends_at_once_and_kill_9_loses_nothing(shell: Shell) -> None:
    rows = gated(shell)
    running = shell.start("run", "wheel:pipeline")
    running.until_processed(100)
    running.process.send_signal(signal.SIGTERM)
    code, _, _ = running.end(signal.SIGTERM)
    assert code == 143

    running = shell.start("run", "wheel:pipeline")
    running.until(lambda line: line["event"] == "started")  # progress may be told before
    code, _, _ = running.end(signal.SIGKILL)
    assert code == -signal.SIGKILL
    status = shell.json("status", shell.name)["pipelines"][0]
    assert [worker["state"] for worker in status["workers"]] == ["dead"]

    shell.gate.touch()
    shell("run", "wheel:pipeline")
    assert shell.counts() == expected(rows)


def test_a_pipeline_that_runs_is_seen_and_kept_from_harm(shell: Shell) -> None:
    rows = gated(shell)
    name = shell.name
    running = shell.start("run", "wheel:pipeline", "--http", "127.0.0.1:0")
    url = str(running.until(lambda line: line["event"] == "http_listening")["url"])
    running.until_processed(200)

    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        assert f'millwheel_worker_info{{pipeline="{name}"' in answer.read().decode()
    assert "is being run by process" in shell("run", "wheel:pipeline", code=2)
    told = shell("drop", name, "--yes", code=2)
    assert f"is being run by process {running.process.pid} on " in told

    status = shell.json("status", name)["pipelines"][0]
    (worker,) = status["workers"]
    assert worker["pid"] == running.process.pid
    assert worker["state"] == "running"
    assert 0 < worker["lease_seconds"] <= 15
    injector, words, windows = status["computations"][:3]
    assert injector["holder"]["kind"] == "source"
    assert "row 398 of" in injector["holder"]["what"]
    assert words["holder"]["kind"] == "input"
    assert windows["low_watermark"] <= windows["input_watermark"] < "2024-01-02"
    (source,) = status["sources"]
    assert source["source"] == str(shell.input)
    assert source["position"]["row"] <= 398

    told = shell("status", name)
    assert f"running, process {running.process.pid}" in told
    assert "code of generation 1" in told
    assert "row 398 of" in told

    shell.gate.touch()
    code, stdout, _ = running.end()
    assert code == 0
    assert "complete" in stdout
    assert shell.counts() == expected(rows)


def test_injectors_are_paused_and_go_on(shell: Shell) -> None:
    name = shell.name
    first, second = lines(100), lines(200, first=100)
    shell.write(first)
    shell("run", "wheel:pipeline", "--keep-open")
    told = shell("pause", name, "nothing", code=2)
    assert "has no injector 'nothing'; it has: lines_injector. Nothing was changed" in told
    told = shell("pause", name, "lines_injector")
    assert told == f"paused 1 injector of {name}: lines_injector\nno worker is running\n"
    assert "lines_injector reads " in (text := shell("status", name))
    assert ", read to its end, paused\n" in text
    assert "\n lines_injector (paused) |" in text

    shell.write(second, append=True)
    running = shell.start("run", "wheel:pipeline")
    running.until(lambda line: line["event"] == "injectors_paused")
    running.until(lambda line: line["event"] == "progress" and line["seconds"] > 1)
    assert running.log[-1]["read"] == 0
    told = shell("pause", name)
    assert (
        told == f"paused 0 injectors of {name}\nalready paused: lines_injector\n"
        "1 worker running: will stop reading within 2 s\n"
    )
    (status,) = shell.json("status", name)["pipelines"]
    assert [c["paused"] for c in status["computations"]] == [True, False, False, False]
    (worker,) = status["workers"]
    assert worker["rss_bytes"] > 1 << 20
    assert worker["cpu"] >= 0
    assert (worker["address"], worker["generation"]) == ("", 1)
    text = shell("status", name)
    assert re.search(
        r"lease expires in \d+ s, 4 intervals, CPU \d+%, [\d,]+ MB, code of generation 1\n", text
    ), text
    shell("resume", name)
    code, stdout, _ = running.end()
    assert code == 0
    assert "complete" in stdout
    assert shell.counts() == expected(first, second)
    told = shell("resume", name)
    assert (
        told == f"resumed 0 injectors of {name}\nnot paused: lines_injector\nno worker is running\n"
    )


def test_a_dump_of_the_schema_is_a_savepoint(shell: Shell, tmp_path: Path) -> None:
    """As docs/howto/run/backup.md says: taken while it runs, restored, and continued there."""
    programs = binaries.packaged_directory()
    if programs is None:
        pytest.skip("pg_dump of the version that the tests run on is not there")
    rows = [*lines(399), {"at": lines(400)[-1]["at"], "text": "gate"}, *lines(100, 400)]
    shell.write(rows)
    running = shell.start("run", "wheel:pipeline", GATE=str(shell.gate))
    running.until_processed(200)
    name, dump = shell.name, tmp_path / "dump.sql"
    command = [str(programs / "pg_dump"), f"--schema={name}", f"--file={dump}", shell.url()]
    subprocess.run(command, check=True)
    assert running.process.poll() is None
    shell.gate.touch()
    assert running.end()[0] == 0  # what it does after the dump is not in it

    shell("drop", name, "--yes")
    command = [
        str(programs / "psql"),
        "-qX",
        "--set=ON_ERROR_STOP=1",
        f"--file={dump}",
        shell.url(),
    ]
    subprocess.run(command, check=True)
    assert shell.counts().total() < expected(rows).total()
    assert "complete" in shell("run", "wheel:pipeline")
    assert shell.counts() == expected(rows)


def test_a_computation_is_removed_with_its_state(shell: Shell) -> None:
    rows = lines(200)
    shell.write(rows)
    shell("run", "wheel:pipeline")
    name = shell.name
    everybody = [row["name"] for row in shell.json("status", name)["pipelines"][0]["computations"]]
    gone = everybody[2:]
    assert "confirm with --yes" in shell("remove", name, *gone, code=2)
    assert "counts, and no other node writes it" in shell("remove", name, gone[0], "-y", code=2)
    assert "removed" in shell("remove", name, *gone, "--yes")
    assert "0 rows" in shell("remove", name, *gone, "--yes")
    left = shell.json("status", name)["pipelines"][0]["computations"]
    assert [row["name"] for row in left] == everybody[:2]
    assert shell.counts() == expected(rows), "the tables of sinks are the user's"
    assert "removed from pipeline" in shell("run", "wheel:pipeline", code=4)
    shell("drop", name, "--yes")


def test_status_is_watched_until_it_is_interrupted(shell: Shell) -> None:
    rows = [*lines(399), {"at": lines(400)[-1]["at"], "text": "gate"}, *lines(100, 400)]
    shell.write(rows)
    running = shell.start("run", "wheel:pipeline", GATE=str(shell.gate))
    running.until_processed(200)

    watching = shell.start("status", "--watch", "--json", "--interval", "0.1")
    assert watching.process.stdout is not None
    name = shell.name
    looks = []
    for line in watching.process.stdout:
        (status,) = [p for p in json.loads(line)["pipelines"] if p["name"] == name]
        looks.append(status)
        if len(looks) == 3:
            shell.gate.touch()
        words = status["computations"][1]
        if words["per_second"] and words["processed"] == 500:
            break
    first_rate = looks[0]["computations"][1]["per_second"]
    assert first_rate is None or first_rate >= 0, "that of the last heartbeats, if there were two"
    assert looks[-1]["computations"][0]["records_out"] == 500, "rows that the injector has sent"
    assert looks[-1]["computations"][1]["out_per_second"] is not None
    assert looks[0]["computations"][1]["lag_seconds"] > 0
    assert [look["at"] for look in looks] == sorted({look["at"] for look in looks})
    owners = {interval["owner"] for interval in looks[0]["intervals"]}
    assert owners == {worker["id"] for worker in looks[0]["workers"]}
    for one in looks[0]["computations"]:
        own = [i for i in looks[0]["intervals"] if i["computation"] == one["name"]]
        assert len(own) == one["intervals"]
        assert sum(interval["processed"] for interval in own) == one["processed"]
    code, _, stderr = watching.end(signal.SIGINT)
    assert (code, stderr) == (130, "interrupted\n")
    assert running.end()[0] == 0

    watching = shell.start("status", name, "--watch", "--interval", "0.1")
    assert watching.process.stdout is not None
    heads = []
    for line in watching.process.stdout:
        if line.startswith(f"pipeline {name} at "):
            heads.append(next(watching.process.stdout))
            if len(heads) == 2:
                break
    assert "rows/s" not in "".join(heads), "no worker lives"
    code, _, stderr = watching.end(signal.SIGTERM)
    assert (code, stderr) == (143, "")

    assert "--interval needs --watch" in shell("status", "--interval", "2", code=2)
    assert "has no pipeline 'nothing'" in shell("status", "nothing", "--watch", code=2)


def test_a_terminal_is_drawn_on_again_and_again(shell: Shell) -> None:
    shell.write(lines(10))
    shell("run", "wheel:pipeline")
    code, shown = on_a_terminal(
        shell, "status", shell.name, "--watch", "--interval", "0.1",
        until=lambda shown: shown.count(b"backlog 0 \xc2\xb7") >= 2,
    )  # fmt: skip
    assert code == 130, shown
    assert re.search(r"\x1b\[\d+A", shown)  # up again, to draw over what was there
    assert shown.rstrip().endswith("interrupted")


def test_the_server_is_ended_unless_it_was_there_and_survives_a_kill(
    own_shell: Shell, own_store: Path
) -> None:
    rows = gated(own_shell)
    running = own_shell.start("run", "wheel:pipeline")
    running.until_processed(200)
    own_shell("status")  # somebody comes and goes meanwhile
    running.end(signal.SIGKILL)
    assert embedded.status(own_store).state == "ready"

    own_shell.gate.touch()
    running = own_shell.start("run", "wheel:pipeline")
    code, _, told = running.end()
    assert code == 0
    assert f"millwheel stop {own_store}" in told
    assert embedded.status(own_store).state == "ready"
    assert own_shell.counts() == expected(rows)
    assert "words counted: 1 gates_passed" in own_shell("status")

    url = own_shell("url", str(own_store)).strip()
    assert own_shell("url", "--store", str(own_store)).strip() == url
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    assert own_shell("stop", str(own_store)) == f"stopped the server of {own_store}\n"
    assert own_shell("stop", str(own_store)) == f"{own_store}: no server is running\n"
    assert f"{own_store}: no server is running" in own_shell("url", code=2)
    assert f"{own_store}: no server is running" in own_shell("stop", "--store", str(own_store))
    assert "give the directory once" in own_shell("stop", str(own_store), "--store", ".", code=2)
    assert "nothing to do" in own_shell("run", "wheel:pipeline")
    assert embedded.status(own_store).state == "stopped"
    own_shell("sql", "SELEC", code=2)
    assert embedded.status(own_store).state == "stopped"
    other = MODULE.replace("LETTERS", "characters")
    (own_shell.directory / "renamed.py").write_text(other)
    own_shell("run", "renamed:pipeline", code=4)
    assert embedded.status(own_store).state == "stopped"


def test_a_killed_postgres_is_started_again(own_shell: Shell, own_store: Path) -> None:
    rows = gated(own_shell)
    running = own_shell.start("run", "wheel:pipeline")
    running.until_processed(200)
    pid = embedded.status(own_store).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    running.until(lambda line: line["event"] == "store_restarted")
    own_shell.gate.touch()
    code, stdout, stderr = running.end()
    assert code == 0, stderr
    assert "complete" in stdout
    assert embedded.status(own_store).state == "stopped"
    embedded.start(own_store)
    assert own_shell.counts() == expected(rows)


def test_a_terminal_gets_a_bar_and_is_asked(shell: Shell) -> None:
    shell.write(lines(100))
    code, shown = on_a_terminal(shell, "run", "wheel:pipeline")
    assert code == 0, shown
    assert "starting" in shown
    assert "complete (this run" in shown

    name = shell.name
    code, shown = on_a_terminal(shell, "drop", name, answer="n\n")
    assert code == 1
    assert "tables" in shown
    assert name in shell("status")
    code, shown = on_a_terminal(shell, "drop", name, answer="y\n")
    assert code == 0, shown
    assert "no pipeline in " in shell("status")


# ---------------------------------------------------------------------------- looking and editing


def test_sql_prints_rows_in_three_forms(shell: Shell) -> None:
    shell.write(lines(100))
    shell("run", "wheel:pipeline")

    def ask(text: str, form: str, code: int = 0) -> str:
        return shell("sql", text, "--format", form, code=code)

    query = "SELECT word, minute, value FROM counts ORDER BY minute, word LIMIT 2"
    assert (
        ask(query, "table") == " word | minute                 | value\n"
        "------+------------------------+-------\n "
        "ant  | 2024-01-01 00:00:00+00 |    32\n "
        "bee  | 2024-01-01 00:00:00+00 |    52\n"
        "(2 rows)\n"
    )
    assert json.loads(ask(query, "json"))[1] == {
        "word": "bee",
        "minute": "2024-01-01T00:00:00+00:00",
        "value": 52,
    }

    awkward = (
        "SELECT NULL AS a, '' AS b, 'x,\"y\"\nz' AS c, 1.50::numeric AS d, 'NaN'::numeric AS e, "
        "'{\"k\": [1, null]}'::jsonb AS f, ARRAY['p', NULL] AS g, 'infinity'::timestamptz AS h, "
        "'50%' LIKE '5%' AS i, '\\x00ff'::bytea AS j, interval '90 s' AS k, "
        "'12024-01-01'::date AS l, 'Infinity'::float8 AS m"
    )
    (row,) = json.loads(ask(awkward, "json"))
    assert row == {
        "a": None, "b": "", "c": 'x,"y"\nz', "d": 1.5, "e": "NaN", "f": {"k": [1, None]},
        "g": ["p", None], "h": "infinity", "i": True, "j": "\\x00ff", "k": "00:01:30",
        "l": "12024-01-01", "m": None,
    }  # fmt: skip
    head, row_ = list(csv.reader(io.StringIO(ask(awkward, "csv"))))
    assert head == list("abcdefghijklm")
    assert row_[:6] == ["", "", 'x,"y"\nz', "1.50", "NaN", '{"k": [1, null]}']
    assert ask("SELECT E'a\\x1b[31mb\\nc' AS x", "table").splitlines()[2] == r" a\x1b[31mb\nc"

    assert ask("SELECT 1 AS one WHERE false", "csv") == "one\n"
    both = ["SELECT 1 AS one", "SELECT 2 AS two"]
    assert shell("sql", *both, "-f", "csv") == "one\n1\n\ntwo\n2\n"
    assert shell("sql", *both, "-f", "json") == ('[\n[\n{"one":1}\n]\n,\n[\n{"two":2}\n]\n]\n')
    assert shell.json("sql", *both) == [[{"one": 1}], [{"two": 2}]]
    assert shell.json("sql", both[0]) == [{"one": 1}]
    assert "leave --format csv out" in shell("sql", "SELECT 1", "--json", "-f", "csv", code=2)
    told = shell("sql", both[0], "SELEC", code=2)
    assert "one" not in told, "all are parsed before the first is run"
    text = "SELECT * FROM states WHERE entry = '' AND value ? 'LETTERS' LIMIT 3"
    states = json.loads(ask(text, "json"))
    assert states[0]["value"]["LETTERS"] > 0


def test_sql_is_watched_until_it_is_interrupted(shell: Shell) -> None:
    shell.write(lines(100))
    shell("run", "wheel:pipeline")
    watching = shell.start(
        "sql", "SELECT count(*) > 0 AS yes FROM counts", "-w", "--interval", ".1"
    )
    assert watching.process.stdout is not None
    block = [" yes\n", "-----\n", " t\n", "(1 row)\n", "\n"]
    for _ in range(2):
        assert [next(watching.process.stdout) for _ in block] == block
    code, _, stderr = watching.end(signal.SIGINT)
    assert code == 130, stderr
    assert "Traceback" not in stderr
    assert "--interval needs --watch" in shell("sql", "SELECT 1", "--interval", "2", code=2)
    assert "shows tables" in shell("sql", "SELECT 1", "--watch", "-f", "csv", code=2)
    assert "syntax error" in shell("sql", "SELEC 1", "--watch", code=2)


REFUSED_SQL = {
    "SELEC 1": 'syntax error at or near "SELEC"',
    "SELECT 1; DROP SCHEMA public": "multiple commands",
    "COMMIT": "gives no rows",
    "SELECT pg_sleep(60)": "stopped after 0.2 s",
    "SELECT set_config('transaction_read_only', 'off', true)": "read-write",
    "SELECT 1 AS a, 2 AS a": "several columns are named a",
    "SELECT pg_advisory_lock(1)": "may reach other sessions",
    "SELECT pg_catalog.PG_TERMINATE_BACKEND (1)": "may reach other sessions",
}


def test_sql_that_is_refused(shell: Shell) -> None:
    started = {
        text: shell.start("sql", text, "--timeout", "0.2", "-f", "json") for text in REFUSED_SQL
    }
    for text, running in started.items():
        code, _, told = running.end()
        assert code == 2, told
        assert REFUSED_SQL[text] in told


def test_sql_on_a_store_of_several_pipelines(shell: Shell) -> None:
    shell("migrate", "another")
    told = shell("sql", "SELECT * FROM states", code=2)
    assert "another, wheel" in told
    assert "--pipeline" in told
    assert "(0 rows)" in shell("sql", "SELECT * FROM another.states")
    assert "(0 rows)" in shell("sql", "SELECT * FROM states", "--pipeline", "wheel")
    assert "has no pipeline 'third'" in shell("sql", "SELECT 1", "-p", "third", code=2)


def test_dead_letters_are_listed_shown_and_discarded(shell: Shell) -> None:
    rows: list[Any] = [*lines(30), {"at": "2024-01-01T00:01:00Z", "text": "boom"}, "not JSON"]
    rows += [{"at": "2024-01-01T00:01:00Z", "text": "boom again"}]
    shell.write(rows)
    pipeline = ("--pipeline", shell.name)
    found = shell.json("run", "wheel:forgiving")
    assert found["dead_letters"] == 3

    letters = {letter["place"]: letter for letter in shell.json("dead-letters", "list", *pipeline)}
    assert len(letters) == 3
    bad = letters[f"{shell.input}, line 32"]
    assert (bad["value"], bad["computation"]) == ("not JSON", "lines_injector")
    failed = [letter for letter in letters.values() if letter is not bad]
    assert {letter["key"] for letter in failed} == {"boom", "boom again"}
    assert "not JSON" in shell("dead-letters", "list", *pipeline)

    number = str(failed[0]["id"])
    assert 'raise LookupError("no such word")' in shell("dead-letters", "show", number, *pipeline)
    shown = shell.json("dead-letters", "show", number, *pipeline)
    assert "Traceback" in shown["traceback"]

    told = shell("dead-letters", "discard", number, "99", *pipeline, code=2)
    assert "no dead letter 99; nothing was discarded" in told
    told = shell("dead-letters", "discard", number, "--dry-run", *pipeline)
    assert "1 dead letter matches" in told
    told = shell("dead-letters", "discard", number, *pipeline, code=2)
    assert "cannot be undone" in told
    assert "confirm with --yes" in told
    told = shell("dead-letters", "discard", number, "--yes", *pipeline)
    assert "discarded 1 dead letter " in told
    assert "discarded 2 " in shell("dead-letters", "discard", "--all", "--yes", *pipeline)
    status = shell.json("status", shell.name)["pipelines"][0]
    assert [c["dead_letters"] for c in status["computations"][:2]] == [1, 2]
    assert [c["dead_letters_kept"] for c in status["computations"][:2]] == [0, 0]


def test_dead_letters_are_logged(shell: Shell) -> None:
    shell.write([*lines(3), "not JSON", "nor this", {"at": "2024-01-01T00:01:00Z", "text": "boom"}])
    code, told, logged = shell.start("run", "wheel:forgiving").end()
    assert code == 0
    assert "dead letters        3" in told
    log = [json.loads(line) for line in logged.splitlines()]
    letters = {line["computation"]: line for line in log if line["event"] == "dead_letter"}
    assert letters["lines_injector"]["place"] == f"{shell.input}, line 4"
    assert letters["words"]["error"] == "LookupError: no such word"
    assert "wheel.py:" in letters["words"]["raised_at"]
    (rest,) = [line for line in log if line["event"] == "dead_letters_left_out"]
    assert (rest["computation"], rest["left_out"]) == ("lines_injector", 1)


def test_an_exit_in_user_code_is_an_error_of_user_code(shell: Shell) -> None:
    shell.write([{"at": "2024-01-01T00:00:00Z", "text": "exit"}])
    told = shell("run", "wheel:pipeline", code=6)
    assert "'words' failed on a record" in told
    assert "SystemExit: 3" in told
    assert "sys.exit(3)" in told
    assert "dead letters        1" in shell("run", "wheel:forgiving")


def test_an_exit_in_a_task_of_user_code_is_no_exit_of_the_command(shell: Shell) -> None:
    shell.write([{"at": "2024-01-01T00:00:00Z", "text": "leaving_task"}])
    told = shell("run", "wheel:pipeline", code=6)
    assert "'words' failed on a record" in told
    assert "SystemExit: 3" in told
    assert "exit_in_a_task" in told
    told = shell("run", "wheel:forgiving")
    assert "dead letters        1" in told


def test_a_run_is_not_complete_while_a_task_holds_ctx(shell: Shell) -> None:
    shell.write([{"at": "2024-01-01T00:00:00Z", "text": "later"}])
    told = shell("run", "wheel:forgiving", code=6)
    assert "words has started a task that uses ctx, and has not awaited it" in told
    assert "wheel.py" in told
    assert "context_used_late" in told


def test_a_run_whose_code_forgets_await_says_where_and_fails(shell: Shell) -> None:
    shell.write([{"at": "2024-01-01T00:00:00Z", "text": "known"}])
    told = shell("run", "wheel:pipeline", code=6)
    assert "coroutine 'is_known' was never awaited at " in told
    assert "wheel.py:" in told
    assert 'if "known" in record.value.text and is_known(record.value.text):' in told
    assert 'Write "await" in front of the call' in told
    assert "not_awaited" in told


def test_a_mistyped_url_makes_no_store(shell: Shell) -> None:
    shell.write(lines(1))
    told = shell("run", "wheel:pipeline", "--store", "postgres//host/x", code=2)
    assert "looks like a mistyped URL" in told
    assert not (shell.directory / "postgres").exists()


def test_drop_takes_everything_and_asks_before(shell: Shell) -> None:
    shell.write(lines(20))
    shell("run", "wheel:pipeline")
    name = shell.name
    told = shell("drop", name, code=2)
    assert "all its data" in told
    assert "confirm with --yes" in told
    assert shell("drop", name, "--yes") == f"dropped pipeline {name}\n"
    assert "has no pipeline" in shell("drop", name, "--yes", code=2)
    shell("migrate", "wheel:pipeline")
    other = shell.directory / "other.jsonl"
    other.write_text(json.dumps(lines(1)[0]) + "\n")
    shell("run", "wheel:pipeline", INPUT=str(other))  # another file: the old one is forgotten


def test_it_is_said_before_which_input_ends(tmp_path: Path) -> None:
    lines_, words = Stream("lines", str), Stream("words", str)
    pipeline = Pipeline("both")
    for stream, follow in ((lines_, False), (words, True)):
        source = JsonLines(tmp_path / stream.name, follow=follow)
        pipeline.inject(stream, source, timestamp=lambda _: datetime.now(UTC))
        pipeline.sink(stream, Discard())
    with structlog.testing.capture_logs() as logs:
        log_boundedness(pipeline, keep_open=False)
        log_boundedness(pipeline, keep_open=True)
    for said in logs:
        assert said["event"] == "input_unbounded"
        assert (said["with_end"], said["without_end"]) == (["lines_injector"], ["words_injector"])
        assert "runs until it is stopped" in said["what_it_means"]
    refused = ["appended to it later are refused" in said["what_it_means"] for said in logs]
    assert refused == [True, False]


def test_rows_after_the_end_of_time_are_refused_with_the_ways_out(shell: Shell) -> None:
    """A plain run on a file that has grown: every new row would be late, and dropped without a
    word."""
    shell.write(lines(20))
    _, _, said = shell.start("run", "wheel:pipeline").end()
    assert "event_time_will_end" in said
    shell.write(lines(20, first=20), append=True)
    told = shell("run", "wheel:pipeline", code=5)
    assert "line 21: this row arrived after event time had ended" in told
    for way_out in ("follow=True", "--keep-open", "millwheel drop", "--accept-late"):
        assert way_out in told
    found = shell.json("run", "wheel:pipeline", "--accept-late")
    assert found["read"] == 20
    assert shell.json("run", "wheel:pipeline")["outcome"] == "nothing to do"
