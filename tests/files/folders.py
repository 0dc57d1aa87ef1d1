"""A directory in which files appear, and the discovery and the readers of its partitions."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any
from unittest import mock

from millwheel import JsonLines
from millwheel.files import followed_files
from millwheel.files.discovery import FileDiscovery
from millwheel.files.file_sources import GrowingFiles
from millwheel.sources import Reader
from tests.files.histories import LOOKS, Files, check_values, compare, was_truncated

NAMES = (
    "batch.jsonl", "batch-2.jsonl", "batch-3.jsonl", "data", "data.1", "day_20260101.jsonl",
    "day.jsonl", "app.log", "app.log.1", "other",
)  # fmt: skip


class Partition:
    """The reader of a partition, and the position that is stored for it."""

    def __init__(self, first: Any) -> None:
        self.reader: Reader | None = None
        self.stored = first
        self.acked = self.stored_acked = 0
        self.given: list[int] = [0]
        self.promised: object = None
        self.rows: dict[int, Any] = {}
        self.ended = False

    def store(self) -> None:
        assert self.reader is not None
        self.stored = json.loads(json.dumps(self.reader.position(self.acked)))
        self.stored_acked = self.acked

    def close(self) -> None:
        if self.reader is not None:
            self.reader.close()
            self.reader = None


class Folders(Files):
    """Writers of a directory, and what an engine does with it."""

    kinds = (
        ("write", 8), ("append", 6), ("look", 5), ("read", 6), ("commit", 4), ("crash", 4),
        ("rename", 3), ("move over", 2), ("remove", 3), ("truncate", 1), ("copy and truncate", 2),
        ("rotate", 3), ("copy", 1), ("gzip", 2), ("touch", 2), ("clock", 1), ("link", 1),
        ("same again", 1), ("finish", 3), ("crash in a look", 2),
    )  # fmt: skip

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        source = JsonLines(f"{directory}/", follow=True, poll=0.01)
        assert isinstance(source, GrowingFiles)
        self.source = source
        self.partitions: dict[str, Partition] = {}
        self.retired: list[Partition] = []
        self.discovery: FileDiscovery
        self.stored: Any = None
        self.expected: list[str] = []

    @classmethod
    async def begin(cls, directory: Path) -> Folders:
        made = cls(directory)
        made.discovery = made.source.discover(None)
        return made

    def close(self) -> None:
        self.discovery.close()
        for each in self.partitions.values():
            each.close()

    # -- the engine

    async def look(self) -> None:
        found = await self.discovery.look()
        self.store()
        for identity in found:
            if identity not in self.partitions:
                first = json.loads(json.dumps(self.discovery.first_position(identity)))
                self.partitions[identity] = Partition(first)
        ended = [identity for identity, part in self.partitions.items() if part.ended]
        for identity in ended:
            self.discovery.resumed(identity, self.partitions[identity].stored, ended=True)
        self.store()
        self.retired += map(self.partitions.pop, ended)

    def store(self) -> None:
        self.stored = json.loads(json.dumps(self.discovery.position()))

    async def read(self, identity: str, limit: int) -> int:
        part = self.partitions[identity]
        if part.ended:
            return 0
        if part.reader is None:
            part.reader = await self.source.partition(identity).open(str, part.stored)
        rows = await part.reader.read(limit)
        if part.promised != (promised := part.reader.promised):  # type: ignore[attr-defined]
            part.promised = promised
            part.store()
        check_values(rows, part.rows)
        part.given += [row.offset + 1 for row in rows]
        if not rows and part.reader.ended:
            part.acked = part.given[-1]
            part.store()
            part.ended = True
            part.close()
        return len(rows)

    async def read_all(self) -> None:
        for _ in range(3):
            await self.look()
            for identity in list(self.partitions):
                for _ in range(LOOKS):
                    while await self.read(identity, 5):
                        pass

    def commit(self, a: int) -> None:
        for part in self.partitions.values():
            if part.reader is not None:
                later = [number for number in part.given if number >= part.acked]
                part.acked = later[-1] if a % 3 else later[a % 7 % len(later)]
                part.store()
        self.store()

    async def finish_files(self) -> None:
        """Let the time pass after which a file that does not grow is finished."""
        with mock.patch.object(followed_files, "FINISHED_SECONDS", 0.0):
            for identity in self.partitions:
                for _ in range(LOOKS):
                    await self.read(identity, 5)

    async def crash(self) -> None:
        self.close()
        self.discovery = self.source.discover(self.stored)
        for identity, part in self.partitions.items():
            part.acked, part.given, part.promised = part.stored_acked, [part.stored_acked], None
            self.discovery.resumed(identity, part.stored, ended=part.ended)

    def is_done(self, path: Path) -> bool:
        done = set()
        for part in (*self.retired, *self.partitions.values()):
            done |= {value for number, value in part.rows.items() if number < part.stored_acked}
        return done.issuperset(self.lines_of(path))

    def has_twin(self, path: Path) -> bool:
        """Whether another file had the same rows: then nothing tells which of them a copy belongs
        to."""
        return any(self.expected.count(line) > 1 for line in self.lines_of(path))

    # -- the writers

    def append(self, path: Path, count: int) -> None:
        data = b""
        for _ in range(count):
            data += self.new_line()
            self.expected.append(f"é{self.number}")
        with path.open("ab") as file:
            file.write(data)
        self.tick(path)

    def unused(self, a: int) -> Path | None:
        return self.pick(a, [p for n in NAMES if not (p := self.directory / n).exists()])

    def plain(self) -> list[Path]:
        return [path for path in self.names() if path.suffix != ".gz"]

    def done(self) -> list[Path]:
        return [path for path in self.plain() if self.is_done(path)]

    async def settle(self) -> None:
        """Read and acknowledge all: what happens next would else be a loss."""
        await self.read_all()
        self.commit(1)

    async def happen(self, kind: str, a: int, b: int) -> None:
        chosen, unused = self.pick(a, self.plain()), self.unused(b)
        is_emptied = kind in ("copy and truncate", "truncate", "gzip")
        if is_emptied and chosen is not None and self.has_twin(chosen):
            return  # its reader may take the other one, or a copy of it, for its own
        match kind:
            case "write" if unused is not None:
                self.append(unused, a % 4)
            case "append" if chosen is not None:
                self.append(chosen, 1 + b % 3)
            case "look":
                await self.look()
            case "read":
                await self.look()
                if self.partitions:
                    await self.read(list(self.partitions)[a % len(self.partitions)], 1 + b % 5)
            case "commit":
                self.commit(a)
            case "finish":
                await self.finish_files()
            case "crash in a look":
                await self.discovery.look()
                await self.crash()
                await self.look()
            case "crash":
                await self.crash()
            case "rename" if chosen is not None and unused is not None and chosen.stat().st_size:
                await self.look()
                chosen.rename(unused)
            case "move over" if chosen is not None:
                await self.settle()
                moved = chosen.read_bytes()  # of which the reader of the other one must not go on
                done = [
                    path
                    for path in self.done()
                    if not moved.startswith(path.read_bytes()) and not self.has_twin(path)
                ]
                if (target := self.pick(b, done)) is not None:
                    chosen.rename(target)
            case "remove":
                await self.settle()
                if (target := self.pick(a, self.done())) is not None:
                    twin = self.has_twin(target)  # its reader may take the other one for its copy
                    target.unlink()
                    if twin or b % 2:
                        await self.read_all()
            case "truncate" if chosen is not None:
                await self.settle()
                os.truncate(chosen, 0)
                self.tick(chosen)
                await self.look()
            case "copy and truncate" if chosen is not None and (
                chosen.stat().st_size and chosen.stat().st_nlink == 1  # the name tells what it is
            ):
                await self.look()
                copy = chosen.with_name(f"{chosen.name}.{100 + self.number}")
                copy.write_bytes(chosen.read_bytes())
                self.tick(copy)
                os.truncate(chosen, 0)
                await self.look()
                if b % 2:
                    self.append(chosen, 1 + b % 3)
                    await self.look()
                await self.read_all()  # or its name must tell what it is a copy of
            case "rotate" if chosen is not None and chosen.stat().st_size:
                await self.look()
                chosen.rename(chosen.with_name(f"{chosen.name}.{100 + self.number}"))
                self.append(chosen, b % 3)
            case "copy" if chosen is not None and unused is not None:
                copy = unused.with_name(f"copy{self.number}x")
                copy.write_bytes(chosen.read_bytes())
                self.tick(copy)
                self.expected += self.lines_of(copy)
                self.number += 1
            case "gzip" if chosen is not None and chosen.stat().st_nlink == 1:
                await self.look()
                target = chosen.with_name(chosen.name + ".gz")
                if any(was_truncated(chosen, p.stored) for p in self.partitions.values()):
                    await self.read_all()
                if not target.exists():
                    target.write_bytes(gzip.compress(chosen.read_bytes(), mtime=0))
                    self.touch(target)
                    chosen.unlink()
            case "touch" if chosen is not None:
                self.touch(chosen)
            case "clock":
                self.step_clock(a)
            case "link" if chosen is not None:
                await self.look()
                linked = self.directory / f"link{self.number}x"
                if b % 2:
                    os.link(chosen, linked)
                else:
                    linked.symlink_to(chosen)
                self.number += 1
            case "same again" if chosen is not None and unused is not None:
                same = [self.directory / f"same{self.number}{end}" for end in "xy"]
                for path in same:
                    path.write_bytes(chosen.read_bytes())
                    self.tick(path)
                    self.expected += self.lines_of(path)
                self.number += 1

    async def finish(self) -> None:
        await self.read_all()
        parts = (*self.retired, *self.partitions.values())
        found = [value for part in parts for value in part.rows.values()]
        compare(found, self.expected, in_order=False)
