"""``millwheel dev``: a person edits a module and its input, and reads the lines that come."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from millwheel.cli.developing.reports import as_raw
from millwheel.cli.developing.row_lines import RowLines
from millwheel.store import embedded
from millwheel.store.console.new_rows import Row
from tests.support.typed_commands import environment, run

SECONDS = 60.0

MODULE = """
from datetime import UTC, datetime

from msgspec import Struct

from millwheel import Computation, Context, JsonLines, Pipeline, Record, Stream, Table
from rules import weight


class Search(Struct):
    query: str


class Trend(Struct):
    query: str = ""
    searches: int = 0


SEARCHES, TRENDS = Stream("searches", Search), Stream("trends", Trend)


class Count(Computation[Search, Trend]):
    writes = (TRENDS,)

    async def process_record(self, record: Record[Search], ctx: Context[Trend]) -> None:
        ctx.state.query = record.value.query
        ctx.state.searches += weight(record.value.query)
        ctx.produce(TRENDS, Trend(ctx.state.query, ctx.state.searches))


pipeline = Pipeline("trends")
pipeline.inject(
    SEARCHES,
    JsonLines("searches.jsonl", follow=True),
    timestamp=lambda search: datetime(2026, 1, 1, tzinfo=UTC),
)
pipeline.add(Count(), SEARCHES.by(lambda search: search.query))
pipeline.sink(TRENDS, Table("trend", Trend, key=("query",)))
"""

RULES = """
def weight(query: str) -> int:
    return 1
"""


class Developer:
    """A ``millwheel dev`` in a directory, on a terminal or not, and the person who uses it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.shown = ""
        self._lock = threading.Condition()
        self._process: subprocess.Popen[bytes] | None = None
        self._terminal: int | None = None
        self.write("trends.py", MODULE)
        self.write("rules.py", RULES)
        self.search("cat")

    # -- the editor ----------------------------------------------------------------------------

    def write(self, file: str, text: str) -> None:
        """As editors do: a new file takes the place of the old one."""
        new = self.directory / f".{file}.new"
        new.write_text(text)
        new.replace(self.directory / file)

    def edit(self, file: str, old: str, new: str) -> None:
        text = (self.directory / file).read_text()
        assert old in text, old
        self.write(file, text.replace(old, new))

    def search(self, *queries: str) -> None:
        with (self.directory / "searches.jsonl").open("a") as file:
            file.writelines(json.dumps({"query": query}) + "\n" for query in queries)

    # -- the command ---------------------------------------------------------------------------

    def start(self, *arguments: str, on_terminal: bool = False) -> None:
        words = [sys.executable, "-P", "-m", "millwheel", "dev", *(arguments or TARGET)]
        given = {**environment(), "NO_COLOR": "1"}
        given.pop("PYTHONDONTWRITEBYTECODE", None)  # as most people have it
        if on_terminal:
            self._terminal, theirs = pty.openpty()
            self._process = subprocess.Popen(
                words, cwd=self.directory, env=given, stdin=theirs, stdout=theirs, stderr=theirs,
                start_new_session=True,
            )  # fmt: skip
            os.close(theirs)
            source = self._terminal
        else:
            source, writing = os.pipe()
            self._process = subprocess.Popen(
                words, cwd=self.directory, env=given, stdin=subprocess.DEVNULL, stdout=writing,
                stderr=writing, start_new_session=True,
            )  # fmt: skip
            os.close(writing)
        threading.Thread(target=self._read, args=(source,), daemon=True).start()

    def _read(self, source: int) -> None:
        with suppress(OSError):  # a terminal whose other end is closed
            while data := os.read(source, 65536):
                with self._lock:
                    self.shown += data.decode(errors="replace").replace("\r", "")
                    self._lock.notify_all()
        os.close(source)

    def wait_for(self, pattern: str) -> str:
        """Wait for a text, and take away all that was shown up to its end."""
        with self._lock:
            self._lock.wait_for(lambda: re.search(pattern, self.shown), SECONDS)
            found = re.search(pattern, self.shown)
            assert found is not None, f"no {pattern!r} in\n{self.shown}"
            before, self.shown = self.shown[: found.end()], self.shown[found.end() :]
            return before

    def type(self, text: str) -> None:
        assert self._terminal is not None
        os.write(self._terminal, text.encode())

    def send(self, number: int) -> int:
        """Send a signal; gives the exit code."""
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait(SECONDS)

    def version(self) -> int:
        """The process of the version that runs."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        return next(
            pid
            for pid in map(int, children.read_text().split())
            if b"version_process" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )

    def rows(self, statement: str) -> list[tuple[object, ...]]:
        url = embedded.status(self.directory / ".millwheel").url
        assert url is not None
        with psycopg.connect(url) as connection:
            return connection.execute(statement.encode()).fetchall()

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(SECONDS)
        embedded.stop(self.directory / ".millwheel")


TARGET = ("trends:pipeline",)


@pytest.fixture
def developer(reachable_path: Path) -> Iterator[Developer]:
    found = Developer(reachable_path)
    yield found
    found.end()


def gone(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return " Z " in Path(f"/proc/{pid}/stat").read_text()
    return True


def answers(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(url) as answer:
        return bool(answer.status == 200)
    return False


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_new_code_continues_with_the_state_of_the_former(developer: Developer) -> None:
    developer.start()
    assert "begins its first generation" in developer.wait_for("running; watching")
    assert "rules.py" in developer.wait_for("\n")
    developer.wait_for(r"trend  upsert   query=cat  searches=1\n")

    rules = developer.directory / "rules.py"  # a module that the target imports
    times = (rules.stat().st_atime_ns, rules.stat().st_mtime_ns)
    rules.write_text(RULES.replace("1", "9"))
    os.utime(rules, ns=times)  # as long and as old as the former one, which Python has compiled
    developer.wait_for(r"changed: rules.py\n(.*\n)*running")
    developer.search("cat")
    developer.wait_for("query=cat  searches=10\n")

    developer.edit("trends.py", "pipeline = Pipe", "pipeline = = Pipe")
    failed = developer.wait_for("waiting for a change; Ctrl-C ends\n")
    assert "SyntaxError" in failed
    assert "trends.py" in failed
    developer.edit("trends.py", "pipeline = = Pipe", "pipeline = Pipe")
    developer.wait_for("running; watching")
    developer.search("cat")
    developer.wait_for("query=cat  searches=19\n")

    version = developer.version()
    assert developer.send(signal.SIGINT) == 130
    assert gone(version)
    assert "the state is kept in .millwheel" in developer.wait_for("stopped.*\n")
    assert embedded.status(developer.directory / ".millwheel").state == "stopped"


def test_an_error_of_user_code_is_shown_with_its_lines_and_corrected(developer: Developer) -> None:
    developer.edit("rules.py", "return 1", "return len(known[query])\n\n\nknown: dict = {}")
    developer.start()
    failed = developer.wait_for("waiting for a change")
    assert "KeyError" in failed
    assert "rules.py:3 in weight: return len(known[query])" in failed
    assert "in process_record: ctx.state.searches += weight(record.value.query)" in failed
    assert "Traceback" not in failed
    developer.write("rules.py", RULES)
    developer.wait_for("query=cat  searches=1\n")


def test_an_argument_that_names_no_pipeline_ends_the_command(developer: Developer) -> None:
    developer.start("trends")
    developer.wait_for("'trends' is not of the form MODULE:PIPELINE")
    assert developer.send(signal.SIGCONT) == 2


def test_a_module_that_is_missing_is_waited_for(developer: Developer) -> None:
    (developer.directory / "rules.py").unlink()
    developer.start()
    assert "No module named 'rules'" in developer.wait_for("waiting for a change")
    developer.write("rules.py", RULES)
    developer.wait_for("changed: rules.py")
    developer.wait_for("query=cat  searches=1\n")


def test_only_the_code_of_the_pipeline_is_watched(developer: Developer) -> None:
    developer.write("other.py", "")
    developer.write("later.py", "def weight(query: str) -> int:\n    return 5\n")
    text = (
        "def weight(query: str) -> int:\n    from later import weight\n\n    return weight(query)\n"
    )
    developer.write("rules.py", text)
    developer.start()
    developer.wait_for("searches=5\n")
    developer.write("other.py", "x = 1")
    developer.edit("rules.py", "\n\n", "\n")
    assert "other.py" not in developer.wait_for("changed: rules.py\n(.*\n)*running.*\n")
    developer.search("cat")
    developer.wait_for("searches=10\n")
    developer.wait_for("watching later.py, too\n")  # a function has imported it
    developer.edit("later.py", "5", "50")
    developer.wait_for("changed: later.py\n(.*\n)*running")
    developer.search("cat")
    developer.wait_for("searches=60\n")


def test_an_input_with_an_end_is_read_again_when_it_grows(developer: Developer) -> None:
    developer.edit("trends.py", ", follow=True", "")
    developer.start()
    developer.wait_for("all input so far is processed")
    developer.search("cat", "owl")
    shown = developer.wait_for("changed: searches.jsonl\n(.*\n)*.*waiting for a change")
    assert "query=cat  searches=2\n" in shown
    assert "query=owl  searches=1\n" in shown
    assert shown.count("searches=") == 2  # the row of before is not shown again


def test_a_process_that_is_killed_is_started_again(developer: Developer) -> None:
    developer.search(*["cat"] * 20_000)
    developer.start()
    developer.wait_for("query=cat")
    os.kill(developer.version(), signal.SIGKILL)
    developer.wait_for("killed by SIGKILL\nstarting again\n(.*\n)*running")
    # The row may have been shown before the kill.
    trends = "SELECT query, searches FROM trends.trend"
    until(lambda: developer.rows(trends) == [("cat", 20_001)])


def test_a_session_that_is_killed_leaves_no_process(developer: Developer) -> None:
    developer.start()
    developer.wait_for("searches=1\n")
    version = developer.version()
    developer.send(signal.SIGKILL)
    until(lambda: gone(version))


@pytest.mark.soak
def test_a_reader_that_goes_away_ends_the_session(developer: Developer) -> None:
    command = f"{sys.executable} -P -m millwheel dev trends:pipeline | head -n 3; exit $PIPESTATUS"
    developer.search(*"abcdefgh")
    done = subprocess.run(
        ["bash", "-c", command], cwd=developer.directory, env=environment(), timeout=SECONDS,
        capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, len(done.stdout.splitlines())) == (128 + signal.SIGPIPE, 3)
    assert "Traceback" not in done.stderr
    assert embedded.status(developer.directory / ".millwheel").state == "stopped"


@pytest.mark.soak
def test_a_file_of_queries_is_watched(developer: Developer) -> None:
    text = """
        CREATE SOURCE searches (at timestamptz NOT NULL, query text NOT NULL,
            WATERMARK FOR at AS at)
            WITH (connector = 'files', path = 'rows.jsonl', follow = 'true');
        CREATE TABLE long (query text, at timestamptz);
        INSERT INTO long SELECT query, at FROM searches WHERE length(query) > 3
    """
    developer.write("trends.sql", text)
    rows = developer.directory / "rows.jsonl"
    rows.write_text('{"at": "2026-01-01T00:00:00Z", "query": "owls"}\n')
    developer.start("trends.sql")
    developer.wait_for(r"long  insert   query=owls  at=2026-01-01T00:00:00\+00:00\n")
    developer.edit("trends.sql", "> 3", "< > 3")
    assert "line 6" in developer.wait_for("waiting for a change")
    developer.edit("trends.sql", "< > 3", "> 2")
    developer.wait_for("running; watching trends.sql")
    with rows.open("a") as file:
        file.write('{"at": "2026-01-01T00:01:00Z", "query": "cat"}\n')
    developer.wait_for("insert   query=cat ")


# -- deploys ---------------------------------------------------------------------------------------

MIGRATED = """    writes = (TRENDS,)
    version = 2
    migrations = {1: lambda old: {**old, "searches": 100 * old["searches"]}}
"""


def test_a_refused_deploy_says_what_it_needs_and_waits(developer: Developer) -> None:
    developer.start()
    developer.wait_for("searches=1\n")
    developer.edit("trends.py", "    searches: int = 0", "    searches: str = ''")
    refused = developer.wait_for("waiting for a change")
    assert "needs:       state of 'count': the type changed without a new version" in refused
    assert "Set version = 2" in refused
    drop = re.search(r"without all that is stored: (millwheel drop .*)\n", refused)
    assert drop is not None
    run(f"{drop[1]} --yes", developer.directory)
    developer.write("trends.py", MODULE)
    developer.wait_for("begins its first generation\n(.*\n)*running")
    developer.wait_for("searches=1\n")


def test_a_migration_is_not_deployed_without_a_confirmation(developer: Developer) -> None:
    developer.start()
    developer.wait_for("searches=1\n")
    developer.edit("trends.py", "    writes = (TRENDS,)\n", MIGRATED)
    asked = developer.wait_for("waiting for a change")
    assert "taken, but:  state of 'count': a new version of a type (1 → 2)" in asked
    assert "not deployed: this changes stored data. Confirm with --yes" in asked
    assert developer.send(signal.SIGINT) == 130
    developer.start(*TARGET, "--yes")
    developer.wait_for("running")
    developer.search("cat")
    developer.wait_for("searches=101\n")


@pytest.mark.soak
def test_on_a_terminal_it_asks(developer: Developer) -> None:
    developer.start(on_terminal=True)
    developer.wait_for("searches=1\n")
    developer.edit("trends.py", "    writes = (TRENDS,)\n", MIGRATED)
    developer.wait_for(r"Deploy this code\? \[y/N\]\n")
    developer.type("n\n")
    developer.wait_for("waiting for a change, or for Enter; Ctrl-C ends\n")
    developer.type("\n")
    developer.wait_for(r"Deploy this code\? \[y/N\]\n")
    developer.edit("trends.py", "100 *", "1000 *")  # a change is an answer too
    developer.wait_for(r"changed: trends.py\n(.*\n)*Deploy this code\? \[y/N\]\n")
    developer.type("y\n")
    developer.wait_for("running")
    developer.search("cat")
    developer.wait_for("searches=1001\n")
    assert developer.send(signal.SIGINT) == 130


@pytest.mark.soak
def test_a_change_that_is_undone_is_deployed_again(developer: Developer) -> None:
    """Otherwise the former code would wait for ever: it may own no interval that newer code has."""
    developer.start()
    developer.wait_for("searches=1\n")
    developer.write("trends.py", MODULE + 'pipeline.sink(TRENDS, Table("history", Trend))\n')
    added = developer.wait_for("running")
    assert "an additional sink" in added
    assert "not deployed" not in added  # what is stored stays as it is
    developer.search("cat")
    developer.wait_for("history  insert   query=cat  searches=2\n")
    developer.write("trends.py", MODULE)
    assert "generation 3 is deployed" in developer.wait_for("running")
    developer.search("cat")
    assert "insert" not in developer.wait_for("searches=3\n")


# -- sinks -----------------------------------------------------------------------------------------

SINKS = """
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from millwheel import Bundles, JsonLinesFiles


@dataclass(frozen=True)
class Mail:
    bundles: Bundles = Bundles(records=1)
    key = None

    def describe(self) -> dict[str, Any]:
        return {"mail": True}

    async def deliver(self, records: Sequence[Record[Any]], ctx: Any) -> None: ...

    async def close(self) -> None: ...


pipeline.sink(TRENDS, Mail())
pipeline.sink(TRENDS, JsonLinesFiles("lines"))
"""


def test_files_and_sinks_outside_the_store_are_shown(developer: Developer) -> None:
    developer.write("trends.py", MODULE + SINKS)
    developer.start(*TARGET, "--http", "127.0.0.1:0")
    url = developer.wait_for("figures.*\n").split()[-1]
    until(lambda: answers(f"{url}/healthz"))
    lines = ("trend  upsert ", "Mail   deliver", "lines  line   ")
    until(lambda: all(f"{line}  query=cat  searches=1\n" in developer.shown for line in lines))


def test_columns_are_aligned_and_no_value_breaks_the_line() -> None:
    lines = RowLines()
    lines.expect(["trend", "minutes"])
    assert list(
        lines.lines("trend", "upsert", rows({"q": "cat", "n": 1}, {"q": "owls", "n": 2}))
    ) == [
        "trend    upsert   q=cat   n=1",
        "trend    upsert   q=owls  n=2",
    ]
    assert list(lines.lines("trend", "upsert", rows({"q": "o\nx", "n": [1, None]}))) == [
        "trend    upsert   q=o\\nx  n=[1,null]",
    ]


def rows(*values: dict[str, object]) -> list[Row]:
    return [{name: as_raw(value) for name, value in each.items()} for each in values]
