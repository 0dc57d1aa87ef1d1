"""``python -m tests.faults.folder [--rows 4000] [--kills 10]``: a followed directory, and workers
that are killed.

Two workers follow a directory in which files are begun, continued, renamed, rotated, copied and
truncated, compressed, and removed once they are read. Files that rest for a second are finished. In
the end each row must have been processed once.
"""

from __future__ import annotations

import argparse
import gzip
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import msgspec

from millwheel import Computation, Context, JsonLines, Pipeline, Record, Stream, Table
from millwheel.files import followed_files
from tests.faults.kill_flights import workplace
from tests.faults.service import Service

FOLDER = os.environ.get("FOLDER_INPUT")
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
KEYS = 50
FILES = 40
"""Files beyond which none is begun."""


class Line(msgspec.Struct):
    number: int


class Passed(msgspec.Struct):
    number: int
    times: int
    """How often it has come."""


class Seen(msgspec.Struct):
    times: dict[int, int] = {}


LINES = Stream("lines", Line)
PASSED = Stream("passed", Passed)


class Count(Computation[Line, Seen]):
    """Counts how often each number comes."""

    writes = (PASSED,)

    async def process_record(self, record: Record[Line], ctx: Context[Seen]) -> None:
        number = record.value.number
        times = ctx.state.times[number] = ctx.state.times.get(number, 0) + 1
        ctx.produce(PASSED, Passed(number, times))


def time_of(line: Line) -> datetime:
    return BEGIN + timedelta(seconds=line.number)


def build() -> Pipeline:
    made = Pipeline("folder")
    made.inject(LINES, JsonLines(f"{FOLDER}/input/", follow=True), timestamp=time_of)
    made.add(Count(), LINES.by(lambda line: line.number % KEYS))
    made.sink(PASSED, Table("passed", Passed, numbered=True))
    return made


if FOLDER is not None:  # in a worker
    followed_files.FINISHED_SECONDS = 1.0
    pipeline = build()


class Writer:
    """The programs that write into the directory."""

    def __init__(self, directory: Path, random: Random) -> None:
        self._directory = directory
        self._random = random
        self._begun = 0
        self.rows = 0

    def write(self, path: Path, count: int) -> None:
        with path.open("ab") as file:
            for number in range(self.rows, self.rows + count):
                file.write(msgspec.json.encode(Line(number)) + b"\n")
        self.rows += count

    def name(self, path: Path | None = None) -> Path:
        self._begun += 1
        if path is not None:
            return path.with_name(f"{path.name}.{self._begun}")
        return self._directory / f"file{self._begun}x"

    def act(self, read: Callable[[], int]) -> None:
        """Let one thing happen; `read` gives the number below which all rows are processed."""
        files = [path for path in self._directory.iterdir() if path.suffix != ".gz"]
        live = [path for path in files if not path.suffix]
        if not live or len(files) < FILES // 2:
            return self.write(self.name(), self._random.randrange(1, 40))
        path = self._random.choice(live)
        match self._random.choice(
            ("begin", "append", "append", "rename", "rotate", "copy", "gzip", "remove")
        ):
            case "begin" if len(files) < FILES:
                self.write(self.name(), self._random.randrange(1, 40))
            case "rename":
                path.rename(self.name())
            case "rotate":
                path.rename(self.name(path))
                self.write(path, self._random.randrange(1, 20))
            case "copy":
                self.name(path).write_bytes(path.read_bytes())
                os.truncate(path, 0)
                time.sleep(0.5)  # the copy keeps its name until it is seen
                self.write(path, self._random.randrange(1, 20))
            case "gzip" if rotated := [each for each in files if each.suffix]:
                chosen = self._random.choice(rotated)
                chosen.with_name(f"{chosen.name}.gz").write_bytes(
                    gzip.compress(chosen.read_bytes())
                )
                chosen.unlink()
            case "remove":
                chosen = self._random.choice(files)
                numbers = [
                    msgspec.json.decode(line, type=Line).number
                    for line in chosen.read_bytes().splitlines()
                ]
                if numbers and max(numbers) < read():
                    chosen.unlink()
            case _:
                self.write(path, self._random.randrange(1, 20))
        return None


def follow(directory: Path, rows: int, kills: int, seed: int, say: Callable[[str], None]) -> None:
    """Run it, and compare.

    Raises:
        AssertionError: a row was not processed once, or a worker ended by itself.
    """
    random = Random(seed)
    (directory / "input").mkdir()
    writer = Writer(directory / "input", random)
    service = Service(directory, "tests.faults.folder:pipeline", "folder", "FOLDER_INPUT")
    writer.act(lambda: 0)
    service.start()
    service.start()

    def acknowledged() -> int:
        """Rows are removed only when no crash can need them again."""
        time.sleep(3.0)
        missing = set(range(writer.rows)) - {
            n for (n,) in service.read("SELECT number FROM passed")
        }
        return min(missing, default=writer.rows)

    try:
        service.wait("SELECT count(*) FROM passed", lambda found: found > 0)
        while writer.rows < rows or service.kills < kills:
            for _ in range(10):
                writer.act(acknowledged)
                time.sleep(random.uniform(0.0, 0.1))
            if service.kills < kills:
                service.kill(random)
        service.wait("SELECT count(*) FROM passed", lambda found: found >= writer.rows)
        service.wait("SELECT count(*) FROM key_interval WHERE slot_from > 0", lambda _: True)
        found = service.read("SELECT number, times FROM passed")
        wanted = [(number, 1) for number in range(writer.rows)]
        twice = sorted({number for number, times in found if times > 1})
        assert sorted(found) == wanted, f"twice: {twice}, {service.log()}"
        service.wait(
            "SELECT count(*) FROM key_interval AS k JOIN log AS l ON l.interval_id = k.id AND "
            "l.source IS NOT NULL",
            lambda left: left <= 2,
        )
        say(f"{writer.rows:,} rows of a followed directory, {service.kills} kills: each once")
    finally:
        service.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with workplace() as directory:
        follow(directory, options.rows, options.kills, options.seed, print)


if __name__ == "__main__":
    main()
