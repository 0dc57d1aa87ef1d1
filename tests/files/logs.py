"""A followed path, a writer that rotates it in all ways, and a reader that crashes."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

from millwheel import JsonLines
from millwheel.files.followed_position import FILE_ROWS
from millwheel.sources import Reader
from tests.files.histories import LOOKS, Files, check_values, compare, was_truncated


class Logs(Files):
    """A writer, its rotations, and a reader with the position that is stored for it."""

    kinds = (
        ("append", 9), ("read", 4), ("read all", 4), ("commit", 4), ("crash", 4), ("rename", 4),
        ("date", 2), ("copy and truncate", 2), ("truncate", 1), ("gzip", 4), ("touch", 2),
        ("clock", 1), ("remove", 2), ("link", 1), ("restore", 1), ("put back", 1),
    )  # fmt: skip

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.path = directory / "app.log"
        self.partition = JsonLines(self.path, follow=True, poll=0.01).partitions()[0]
        self.reader: Reader
        self.pending = b""
        """The part of the last line that is not written yet."""
        self.expected: list[str] = []
        self.rows: dict[int, Any] = {}
        self.given: list[int] = [0]
        """Numbers up to which rows were read since the last start."""
        self.acked = 0
        self.stored: Any = None
        self.stored_acked = 0
        self.promised: object = None

    @classmethod
    async def begin(cls, directory: Path) -> Logs:
        made = cls(directory)
        made.path.write_bytes(b"")
        made.tick(made.path)
        await made.open()
        made.store()
        return made

    async def open(self) -> None:
        self.reader = await self.partition.open(str, self.stored)
        self.acked, self.given, self.promised = self.stored_acked, [self.stored_acked], None

    def close(self) -> None:
        self.reader.close()

    # -- the engine

    def store(self) -> None:
        self.stored = json.loads(json.dumps(self.reader.position(self.acked)))
        self.stored_acked = self.acked

    async def read(self, limit: int) -> int:
        rows = await self.reader.read(limit)
        if self.promised != (promised := self.reader.promised):  # type: ignore[attr-defined]
            self.promised = promised
            self.store()
        check_values(rows, self.rows)
        self.given += [row.offset + 1 for row in rows]
        return len(rows)

    async def read_all(self) -> None:
        for _ in range(LOOKS):
            while await self.read(5):
                pass

    def commit(self, a: int) -> None:
        later = [number for number in self.given if number >= self.acked]
        self.acked = later[min(a % 7, len(later) - 1)] if a % 3 else later[-1]
        self.store()

    async def crash(self, a: int) -> None:
        if a % 2:
            self.store()
        self.reader.close()
        await self.open()

    # -- the writer

    def write(self, data: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(data)
        self.tick(self.path)

    def append(self, count: int, cut: int) -> None:
        data = self.pending
        for _ in range(count):
            data += self.new_line()
            self.expected.append(f"é{self.number}")
        stop = len(data) - min(cut, len(data))
        self.pending = data[stop:]
        if stop:
            self.write(data[:stop])

    def end_line(self) -> None:
        if self.pending:
            data, self.pending = self.pending, b""
            self.write(data)

    def rotated(self) -> list[Path]:
        return [path for path in self.names() if path.name not in ("app.log", "app.log.bak")]

    def is_done(self, path: Path) -> bool:
        """Whether its rows are acknowledged for good, and the reader has left it."""
        last = max(number for number, *_ in self.stored["files"])
        done = {
            value
            for number, value in self.rows.items()
            if number < self.stored_acked and number // FILE_ROWS < last
        }
        lines = self.lines_of(path)
        return bool(lines) and done.issuperset(lines)

    def rotates(self) -> None:
        """End the last line; the order is not known if only a part of the first line was read."""
        self.end_line()
        file = self.reader._file  # type: ignore[attr-defined]
        here = self.path.stat().st_ino
        taken = [known[0] for _, _, inode, known in self.stored["files"] if inode == here]
        taken += [] if file is None else [file.log.taken]
        first = self.path.read_bytes().find(b"\n")
        self.disturbed |= 0 < max(taken, default=0) <= first

    def shift(self) -> None:
        for number in range(40, 0, -1):
            for end in ("", ".gz"):
                if (old := self.directory / f"app.log.{number}{end}").exists():
                    old.rename(self.directory / f"app.log.{number + 1}{end}")

    async def happen(self, kind: str, a: int, b: int) -> None:
        path = self.path
        match kind:
            case "append":
                self.append(a % 5, b % 9)
            case "read":
                await self.read(1 + a % 5)
            case "read all":
                await self.read_all()
            case "commit":
                self.commit(a)
            case "crash":
                await self.crash(a)
            case "rename" if path.exists():
                self.rotates()
                self.shift()
                path.rename(self.directory / "app.log.1")
                if a % 3:
                    self.write(b"")
            case "date" if path.exists():
                self.rotates()
                self.number += 1
                path.rename(self.directory / f"app-{20260000 + self.number}.log")
                if a % 3:
                    self.write(b"")
            case "copy and truncate" if path.exists():
                self.rotates()
                self.shift()
                (self.directory / "app.log.1").write_bytes(path.read_bytes())
                self.tick(self.directory / "app.log.1")
                os.truncate(path, 0)
                self.tick(path)
            case "truncate" if path.exists():
                self.end_line()
                await self.read_all()
                self.commit(0)
                os.truncate(path, 0)
                self.tick(path)
            case "gzip":
                await self.gzip(a, b)
            case "touch":
                if (chosen := self.pick(a, self.names())) is not None:
                    self.touch(chosen)
            case "clock":
                self.step_clock(a)
            case "remove":
                done = [p for p in self.rotated() if self.is_done(p)]
                if (chosen := self.pick(a, done)) is not None:
                    if chosen.stat().st_nlink == 1:  # else it is still here
                        self.removed.append(chosen.read_bytes())
                    chosen.unlink()
            case "link":
                chosen = self.pick(a, self.names())
                self.number += 1
                if chosen is not None and not chosen.name.endswith(".gz"):
                    os.link(chosen, self.directory / f"app-{20260000 + self.number}.log")
            case "restore" if self.removed:
                self.number += 1
                data = self.removed.pop(a % len(self.removed))
                end = ".gz" * data.startswith(b"\x1f\x8b")
                restored = self.directory / f"app.log.{50 + self.number}{end}"
                restored.write_bytes(data)
                self.tick(restored)
            case "put back" if not path.exists():
                inodes = {inode for _, _, inode, _ in self.stored["files"]}
                done = [p for p in self.rotated() if p.suffix != ".gz" and self.is_done(p)]
                plain = [path for path in done if path.stat().st_ino in inodes]
                if (chosen := self.pick(a, plain)) is not None:
                    chosen.rename(path)
                    self.disturbed = True  # a file that was begun before a crash may come after it
                    self.append(1 + b % 3, 0)
                    # A line that comes late into a file elsewhere is not read. The reader waits
                    # until the rows before it are acknowledged.
                    await self.read_all()
                    if b % 2:
                        await self.crash(a)
                        await self.read_all()
                    self.commit(0)
                    await self.read_all()

    async def gzip(self, a: int, b: int) -> None:
        plain = [each for each in self.rotated() if each.suffix != ".gz"]
        chosen = self.pick(a, plain)
        if chosen is None or chosen.stat().st_nlink > 1 or was_truncated(chosen, self.stored):
            return  # as gzip does
        target = chosen.with_name(chosen.name + ".gz")
        state = chosen.stat()
        if b % 2:  # as logback does
            hidden = chosen.with_name(chosen.name + ".tmp")
            chosen.rename(hidden)
            chosen = hidden
            if b % 4 == 3:
                self.disturbed |= not self.is_done(chosen)  # it comes after the next one
                await self.read_all()
        target.write_bytes(gzip.compress(chosen.read_bytes(), mtime=0))
        if b % 3:
            os.utime(target, ns=(state.st_mtime_ns, state.st_mtime_ns))
        else:
            self.touch(target)
        if b % 5 == 0:
            await self.read_all()
        chosen.unlink()

    async def finish(self) -> None:
        self.end_line()
        for _ in range(2):  # what was hidden at a rotation is read at the next one
            if self.path.exists():
                self.shift()
                self.path.rename(self.directory / "app.log.1")
            self.append(1, 0)
            await self.read_all()
        found = [self.rows[number] for number in sorted(self.rows)]
        compare(found, self.expected, in_order=not self.disturbed)
