"""Draws histories of files, runs them, and shortens those that fail."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
import shutil
import signal
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import structlog

from millwheel.files import (
    catalogue,
    content,
    discovery,
    followed_files,
    followed_position,
    position_search,
    reader,
)
from millwheel.files.content import fingerprint
from millwheel.sources import Row

Event = tuple[str, int, int]
"""What happens, and two numbers that choose among the files and ways that there are."""

MOST_SECONDS = 20
"""Longest time that a history may take, which is a few hundredths of a second otherwise."""
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""A file system in memory: a history writes a few hundred times."""
LOOKS = 12
"""Looks after which a reader has read all that there is."""


@dataclass(frozen=True)
class History:
    """One history: its events, and the sizes that are made small so that short files are long."""

    kind: str
    events: tuple[Event, ...]
    chunk: int
    fingerprint: int
    most_open: int


class Difference(AssertionError):
    """What was read is not what was written."""


class Files(ABC):
    """The files of a history on disk, with what their writer knows of them."""

    kinds: tuple[tuple[str, int], ...]
    """Kinds of events, with how often each is drawn."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.now = 1_700_000_000_000_000_000
        self.number = 0
        self.disturbed = False
        """Modification times do not tell the order of unread files any more."""
        self.removed: list[bytes] = []
        """Contents of files that were removed after they were read."""

    @abstractmethod
    async def happen(self, kind: str, a: int, b: int) -> None:
        """Let one event happen."""

    @abstractmethod
    async def finish(self) -> None:
        """Read the rest, and compare.

        Raises:
            Difference: what was read is not what was written.
        """

    @abstractmethod
    def close(self) -> None:
        """Close all readers."""

    # -- the writer

    def tick(self, path: Path) -> None:
        self.now += 1_000_000
        os.utime(path, ns=(self.now, self.now))

    def new_line(self) -> bytes:
        self.number += 1
        return json.dumps(f"é{self.number}", ensure_ascii=False).encode() + b"\n"

    def step_clock(self, a: int) -> None:
        self.now += (a % 7 - 3) * 30_000_000_000
        self.disturbed = True

    def names(self) -> list[Path]:
        return sorted(path for path in self.directory.iterdir() if not path.is_symlink())

    def pick(self, a: int, paths: Sequence[Path]) -> Path | None:
        return paths[a % len(paths)] if paths else None

    def lines_of(self, path: Path) -> list[str]:
        data = path.read_bytes()
        if data.startswith(b"\x1f\x8b"):
            data = gzip.decompress(data)
        lines = data.split(b"\n")[:-1]
        return [json.loads(line) for line in lines]

    def touch(self, path: Path) -> None:
        self.disturbed = True
        self.tick(path)


def was_truncated(path: Path, position: Any) -> bool:
    """Whether a file that is known by a position has lost these bytes: nothing tells this once it
    is compressed."""
    data, here = path.read_bytes(), path.stat().st_ino
    return any(
        inode == here and list(fingerprint(known[0], data, data[: known[0]])) != known
        for _, _, inode, known in position["files"]
    )


def check_values(rows: Sequence[Row], known: dict[int, Any]) -> None:
    """A number means one row, for ever."""
    for row in rows:
        if row.error is not None:
            raise Difference(f"row {row.offset} is bad: {row.error}")
        if known.setdefault(row.offset, row.value) != row.value:
            raise Difference(f"number {row.offset} was {known[row.offset]!r}, is {row.value!r}")


def compare(found: Sequence[Any], expected: Sequence[Any], *, in_order: bool = True) -> None:
    if not in_order:
        found, expected = sorted(found), sorted(expected)
    if list(found) != list(expected):
        lost = sorted(set(expected) - set(found))
        twice = sorted({value for value in found if found.count(value) > expected.count(value)})
        raise Difference(f"lost {lost}, too often {twice}, of {len(expected)} in order {in_order}")


def draw(seed: int, kinds: Sequence[tuple[str, Sequence[tuple[str, int]]]]) -> History:
    """Draw a history."""
    chance = random.Random(seed)
    kind, weighted = kinds[seed % len(kinds)]
    names, weights = zip(*weighted, strict=True)
    count = chance.randint(3, 30)
    drawn = chance.choices(names, weights, k=count)
    events = tuple((name, chance.randrange(1 << 16), chance.randrange(1 << 16)) for name in drawn)
    return History(
        kind,
        events,
        chance.choice((1, 7, 4096)),
        chance.choice((24, 4096)),
        chance.choice((1, 100)),
    )


async def _run(history: History, world: Callable[[Path], Awaitable[Files]]) -> None:
    directory = Path(tempfile.mkdtemp(dir=MEMORY))
    files = None
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, directory)
        for module, name, value in (
            (reader, "CHUNK_BYTES", history.chunk),
            (content, "CHUNK_BYTES", history.chunk),
            (content, "FINGERPRINT_BYTES", history.fingerprint),
            (followed_position, "FINGERPRINT_BYTES", history.fingerprint),
            (discovery, "FINGERPRINT_BYTES", history.fingerprint),
            (catalogue, "FINGERPRINT_BYTES", history.fingerprint),
            (content.open_files, "most", history.most_open),
            (followed_files, "GRACE_SECONDS", 0.0),
            (position_search, "ATTEMPT_SECONDS", 0.0),
            (discovery, "COPY_SECONDS", 0.0),
        ):
            stack.enter_context(mock.patch.object(module, name, value))
        stack.enter_context(structlog.testing.capture_logs())
        try:
            files = await world(directory)
            for event in history.events:
                await files.happen(*event)
            await files.finish()
        finally:
            if files is not None:
                files.close()


def failure_of(history: History, world: Callable[[Path], Awaitable[Files]]) -> str | None:
    """Run a history; gives the difference, or the error that it ended with."""

    def hangs(*_: object) -> None:
        raise Difference(f"not finished after {MOST_SECONDS} s")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(MOST_SECONDS)
    try:
        asyncio.run(_run(history, world))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return None


def shorten(history: History, fails: Callable[[History], bool]) -> History:
    """Leave out events as long as the rest fails too."""
    step = len(history.events)
    while step := step // 2:
        place = 0
        while place < len(history.events):
            rest = history.events[:place] + history.events[place + step :]
            shorter = replace(history, events=rest)
            if fails(shorter):
                history = shorter
            else:
                place += step
    return history
