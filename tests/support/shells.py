"""The command line as a user types it, in a directory of its own."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from millwheel.store import embedded
from tests.support import forked_commands
from tests.support.forked_commands import Process

COMMAND = (sys.executable, "-P", "-m", "millwheel.cli.main")  # -P: not the current directory

SECONDS = 60

MODULE = """
import asyncio, os, resource, sys
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from millwheel import (
    Computation, Context, JsonLines, JsonLinesFiles, Pipeline, Record, Settings, Stream, Table
)
from millwheel.computations import Windowed, count
from millwheel.windows import Pane, Tumbling

INPUT = os.environ.get("INPUT", "lines.jsonl")
NAME = os.environ.get("NAME", "wordcount")
GATE = os.environ.get("GATE", "")
SETTINGS = Settings(
    progress_seconds=0.05,
    lease_seconds=float(os.environ.get("LEASE", "15")),
    placement_seconds=float(os.environ.get("PLACEMENT", "1")),
)


class Line(msgspec.Struct):
    at: datetime
    text: str


class Letters(msgspec.Struct):
    LETTERS: int = 0


class CountRow(msgspec.Struct):
    word: str
    minute: datetime
    value: int


LINES = Stream("lines", Line)
WORDS = Stream("words", str)
COUNTS = Stream("counts", Pane[int])


class Words(Computation[Line, Letters]):
    writes = (WORDS,)

    async def process_record(self, record: Record[Line], ctx: Context[Letters]) -> None:
        while GATE and "gate" in record.value.text and not Path(GATE).exists():
            await asyncio.sleep(0.005)
        if "gate" in record.value.text:
            ctx.count("gates_passed")
        if "boom" in record.value.text:
            raise LookupError("no such word")
        if "exit" in record.value.text:
            sys.exit(3)
        if "leaving_task" in record.value.text:
            await asyncio.create_task(leave())
        if "later" in record.value.text:
            later.append(asyncio.create_task(use_later(ctx)))
        if "known" in record.value.text and is_known(record.value.text):
            ctx.count("known")
        for word in record.value.text.split():
            ctx.state.LETTERS += len(word)
            old = datetime.fromisoformat("2000-01-01T00:00:00Z") if "old" in word else None
            ctx.produce(WORDS, word, timestamp=old)


later = []


async def is_known(text):
    return False


async def use_later(ctx):
    await asyncio.sleep(60)
    ctx.produce(WORDS, "late")


async def leave():
    sys.exit(3)


def text(line):
    return line.text


def to_row(pane):
    return CountRow(pane.key, pane.start, pane.value)


def build(on_error="fail") -> Pipeline:
    made = Pipeline(NAME, settings=SETTINGS)
    made.inject(
        LINES, JsonLines(INPUT), timestamp=lambda line: line.at, on_error=on_error,
    )
    made.add(Words(), LINES.by(text), on_error=on_error)
    made.add(Windowed(Tumbling(minutes=1), count, to=COUNTS), WORDS.by(str))
    made.sink(COUNTS, Table("counts", CountRow, key=("word", "minute")), row=to_row)
    return made


def forgiving() -> Pipeline:
    return build(on_error="dead_letter")


def cycle() -> Pipeline:
    class Back(Computation[str, None]):
        writes = (LINES,)

        async def process_record(self, record, ctx): ...
    made = build()
    made.add(Back(), WORDS.by(str))
    return made


def unwritten() -> Pipeline:
    made = build()
    made.sink(Stream("nobodys", CountRow), Table("nobodys", CountRow))
    return made


def needs_something(something):
    return build()


def fails():
    return {}["missing"]


def to_files():
    if limit := int(os.environ.get("FILE_BYTES", "0")):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    made = Pipeline(NAME, settings=SETTINGS)
    made.inject(LINES, JsonLines(INPUT), timestamp=lambda line: line.at)
    made.add(Words(), LINES.by(text))
    made.sink(WORDS, JsonLinesFiles(os.environ["OUTPUT"]))
    return made


pipeline = build()
"""

START = datetime(2024, 1, 1, tzinfo=UTC)

Rows = list[dict[str, str]]


def lines(count: int, first: int = 0) -> Rows:
    """Rows of input, a second apart."""
    words = ("ant", "bee", "cat", "dog", "elk")
    return [
        {
            "at": (START + timedelta(seconds=number)).isoformat(),
            "text": f"{words[number % 5]} {words[number * number % 3]} line{number % 97}",
        }
        for number in range(first, first + count)
    ]


def expected(*parts: Rows) -> Counter[tuple[str, str]]:
    """(word, minute) to how often: what the table of counts must hold."""
    return Counter(
        (word, datetime.fromisoformat(row["at"]).replace(second=0).isoformat())
        for rows in parts
        for row in rows
        for word in row["text"].split()
    )


class Running:
    """A command that was started and not waited for."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.log: list[dict[str, Any]] = []
        self._watchdog = threading.Timer(SECONDS, process.kill)
        self._watchdog.start()

    def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Read the log up to a certain line."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if not line.startswith("{"):
                pytest.fail(line + self.process.stderr.read())
            self.log.append(json.loads(line))
            if wanted(self.log[-1]):
                return self.log[-1]
        pytest.fail(f"it ended with {self.process.wait()} before that: {self.log[-3:]}")

    def until_processed(self, records: int) -> None:
        self.until(lambda line: line["event"] == "progress" and line["processed"] >= records)

    def end(self, number: int | None = None) -> tuple[int, str, str]:
        """Send a signal, perhaps; wait; exit code, stdout and the rest of stderr."""
        if number is not None:
            self.process.send_signal(number)
        stdout, stderr = self.process.communicate()
        self._watchdog.cancel()
        return self.process.returncode, stdout, stderr


class Shell:
    """Runs commands in a directory, on a store.

    Args:
        store: a directory, or a URL.
        name: of the files that it makes, and of the pipeline if that has no other.
    """

    def __init__(self, directory: Path, store: str, name: str, pipeline: str = "") -> None:
        self.directory = directory
        self.name = pipeline or name
        self.input = directory / f"{name}.jsonl"
        self.gate = directory / f"{name}.gate"
        self.environment = {
            **{n: v for n, v in os.environ.items() if not n.startswith("MILLWHEEL")},
            "MILLWHEEL_STORE": store,
            "INPUT": str(self.input),
            "NAME": self.name,
            "COLUMNS": "200",
            "NO_COLOR": "1",
        }
        self.started: list[Running] = []
        self.cold = False
        """Python starts anew for each command, as when somebody types it
        (`tests.support.forked_commands`)."""

    def write(self, rows: list[Any], *, append: bool = False) -> None:
        text = "".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows)
        with self.input.open("a" if append else "w") as file:
            file.write(text)

    def start(self, *arguments: str, **environment: str) -> Running:
        """Begin a command."""
        given = {**self.environment, **environment}
        if self.cold:
            process: Process = subprocess.Popen(
                [*COMMAND, *arguments],
                cwd=self.directory,
                env=given,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        else:
            process = forked_commands.parent().start(list(arguments), self.directory, given)
        self.started.append(Running(process))
        return self.started[-1]

    def __call__(self, *arguments: str, code: int = 0, **environment: str) -> str:
        """Run a command to its end; its stdout, or its stderr if it is to fail."""
        found, stdout, stderr = self.start(*arguments, **environment).end()
        assert found == code, f"exit code {found}\n{stdout}\n{stderr}"
        assert "Traceback" not in stderr, stderr
        return stderr if code else stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))

    def counts(self) -> Counter[tuple[str, str]]:
        """What the pipeline's table of counts holds; the server runs."""
        query = sql.SQL("SELECT word, minute, value FROM {}").format(
            sql.Identifier(self.environment["NAME"], "counts")
        )
        with psycopg.connect(self.url(), options="-c timezone=UTC") as connection:
            rows = connection.execute(query).fetchall()
        return Counter({(word, minute.isoformat()): value for word, minute, value in rows})

    def url(self) -> str:
        """The store by its URL, as if somebody else ran that Postgres."""
        store = self.environment["MILLWHEEL_STORE"]
        if "://" in store:
            return store
        url = embedded.status(Path(store)).url
        assert url is not None
        return url

    def end(self) -> None:
        """Kill the commands that still run."""
        for running in self.started:
            if running.process.poll() is None:
                running.process.kill()
                running.end()


def on_a_terminal(
    shell: Shell,
    *arguments: str,
    answer: str = "",
    until: Callable[[bytes], bool] | None = None,
) -> tuple[int, str]:
    """Run a command on a terminal, or up to when it is interrupted; exit code and all it showed."""
    ours, theirs = pty.openpty()
    environment = {**shell.environment, "TERM": "xterm", "COLUMNS": "100"}
    process = forked_commands.parent().start_on_terminal(
        theirs, list(arguments), shell.directory, environment
    )
    os.close(theirs)
    watchdog = threading.Timer(SECONDS, process.kill)
    watchdog.start()
    os.write(ours, answer.encode())
    shown = b""
    try:
        while data := os.read(ours, 65536):
            shown += data
            if until is not None and until(shown):
                process.send_signal(signal.SIGINT)
                until = None
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    watchdog.cancel()
    return process.wait(), shown.decode()
