"""Part files of a JSON Lines sink: their own, and written whole or not at all."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millwheel import JsonLinesFiles
from millwheel.errors import InputError, OutputError, OutputFull
from millwheel.runtime.interval.part_files import PartFile, PartPlace
from millwheel.services.observed import EngineObserved
from tests.support.part_files import written_numbers
from tests.support.pipelines import QUICK, script, tally_pipeline
from tests.support.values import ITEMS, TALLY, items
from tests.support.worlds import World

SECRET = b"nobody may write here\n" * 100


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim.txt"
    path.write_bytes(SECRET)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out" / "part-00001.jsonl"


def planted(path: Path) -> Path:
    path.parent.mkdir()
    return path


# -- whose file it is ----------------------------------------------------------------------


def left_by(owner: str, path: Path, text: bytes = b"1\n2\n") -> None:
    """Lines of a pipeline that does not run any more."""
    PartFile(path, 0, owner=owner).close()
    path.write_bytes(text)


def test_a_file_of_another_pipeline_is_refused(path: Path) -> None:
    left_by("shop.1111", path)
    with pytest.raises(OutputError, match="lines of the pipeline 'shop' of another store"):
        PartFile(path, 0, owner="till.2222")
    assert path.read_bytes() == b"1\n2\n"


def test_a_file_of_the_same_pipeline_stays_its_own_under_another_name(path: Path) -> None:
    left_by("shop.1111", path)
    part = PartFile(path, 4, owner="till.1111")
    with pytest.raises(OutputError, match="pipeline 'till'"):
        PartFile(path, 0, owner="shop.2222")
    part.close()
    assert path.read_bytes() == b"1\n2\n"


def test_a_pipeline_that_was_dropped_gives_its_files_to_the_next_one_of_its_name(
    path: Path,
) -> None:
    """As before, unless it runs in another store: then its lock is refused, and not its place."""
    running = PartFile(path, 0, owner="shop.1111")
    asyncio.run(running.append([b"1"]))
    with pytest.raises(OutputError, match="another store or copy"):
        PartFile(path, 0, owner="shop.2222")
    asyncio.run(running.append([b"2"]))
    running.close()
    assert path.read_bytes() == b"1\n2\n"
    PartFile(path, 0, owner="shop.2222").close()
    assert path.read_bytes() == b""


def test_a_copy_of_a_file_that_is_locked_has_its_owner(path: Path) -> None:
    frozen = PartFile(path, 0, owner="shop.1111")
    successor = PartFile(path, 0, owner="shop.1111")
    frozen.close()
    successor.close()
    with pytest.raises(OutputError, match="pipeline 'shop'"):
        PartFile(path, 0, owner="till.2222")


def test_a_file_system_without_attributes_knows_no_owner(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: Any) -> bytes:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(os, "getxattr", unsupported)
    monkeypatch.setattr(os, "setxattr", unsupported)
    left_by("shop.1111", path)
    PartFile(path, 4, owner="till.2222").close()
    assert path.read_bytes() == b"1\n2\n"


@pytest.mark.parametrize(
    ("position", "own", "place"),
    [
        (None, None, ("", 0)),
        ({"length": 7}, None, ("", 7)),
        ({"length": 7}, "_as_shop2", ("_as_shop2/", 0)),
        ({"length": 7, "in": "_as_shop2"}, "_as_shop2", ("_as_shop2/", 7)),
        ({"length": 7, "in": "_as_shop2"}, "_as_shop3", ("_as_shop3/", 0)),
        ({"length": 7, "in": "_as_shop2"}, None, ("_as_shop2/", 7)),
    ],
)
def test_the_place_of_lines(
    position: dict[str, Any] | None, own: str | None, place: tuple[str, int]
) -> None:
    """A fork begins anew in a directory of its own; when it has taken the name of its origin, its
    lines stay where they are."""
    found = PartPlace.of(Path("/out"), 4, position, own)
    assert (str(found.path), found.length) == (f"/out/{place[0]}part-00004.jsonl", place[1])


@pytest.mark.parametrize("length", [0, 10])
def test_a_symbolic_link_is_refused_and_what_it_points_to_is_left_alone(
    path: Path, victim: Path, length: int
) -> None:
    planted(path).symlink_to(victim)
    with pytest.raises(
        OutputError, match=f"{path} is a symbolic link to {victim}: .* Remove the link"
    ):
        PartFile(path, length)
    assert victim.read_bytes() == SECRET
    assert path.is_symlink()


def test_a_link_that_points_nowhere_makes_no_file(path: Path, tmp_path: Path) -> None:
    planted(path).symlink_to(tmp_path / "new.txt")
    with pytest.raises(OutputError, match="symbolic link"):
        PartFile(path, 0)
    assert not (tmp_path / "new.txt").exists()


def test_a_linked_directory_is_where_the_output_goes(path: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    path.parent.symlink_to(tmp_path / "elsewhere")
    part = PartFile(path, 0)
    asyncio.run(part.append([b"1", b"2"]))
    part.close()
    assert (tmp_path / "elsewhere" / path.name).read_bytes() == b"1\n2\n"


def test_a_file_with_another_name_is_continued_in_a_copy(path: Path, victim: Path) -> None:
    """A snapshot by hard links keeps what it has."""
    os.link(victim, planted(path))
    part = PartFile(path, 21)
    asyncio.run(part.append([b"2"]))
    part.close()
    assert path.read_bytes() == SECRET[:21] + b"2\n"
    assert victim.read_bytes() == SECRET
    assert path.stat().st_mode == victim.stat().st_mode
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def written(path: Path) -> bytes:
    return path.read_bytes()


def make_directory(path: Path) -> None:
    path.mkdir()


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("make", [make_directory, make_pipe])
def test_what_is_no_regular_file_is_refused(path: Path, make: Callable[[Path], None]) -> None:
    make(planted(path))
    with pytest.raises(OutputError, match=f"{path} is no regular file.*Remove it"):
        PartFile(path, 0)


def test_a_link_in_the_place_of_the_copy_is_not_written_to(path: Path, victim: Path) -> None:
    planted(path).write_bytes(b"1\n")
    path.with_suffix(".taken").symlink_to(victim)
    with path.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        part = PartFile(path, 2)
    asyncio.run(part.append([b"2"]))
    part.close()
    assert path.read_bytes() == b"1\n2\n"
    assert victim.read_bytes() == SECRET


def test_a_copy_belongs_to_its_owner_alone(path: Path) -> None:
    first = PartFile(path, 0)
    asyncio.run(first.append([b"1"]))
    second = PartFile(path, 2)
    third = PartFile(path, 2)
    for number, part in enumerate((first, second, third)):
        asyncio.run(part.append([b"%d" % number]))
        part.close()
    assert path.read_bytes() == b"1\n2\n"


def test_a_file_that_is_shorter_than_committed(path: Path) -> None:
    planted(path).write_bytes(b"1\n")
    with pytest.raises(InputError, match="has 2 bytes, but 3 were committed"):
        PartFile(path, 3)


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot be opened: .*: nothing is lost"):
        PartFile(tmp_path / "file" / "part-00001.jsonl", 0)


def test_no_file_stays_open(path: Path, victim: Path) -> None:
    def opened() -> int:
        return len(os.listdir("/dev/fd"))

    planted(path).symlink_to(victim)
    before = opened()
    with pytest.raises(OutputError):
        PartFile(path, 0)
    path.unlink()
    part = PartFile(path, 0)
    with pytest.raises(InputError):
        PartFile(path, 5)
    PartFile(path, 0).close()  # a copy
    part.close()
    part.close()
    assert opened() == before


# -- no room -------------------------------------------------------------------------------


class Disk:
    """Lets the process write so many bytes to regular files; a write may be cut short."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int, error: int) -> None:
        self.room = room
        self.error = error
        self.refused = 0
        self._write = os.write
        monkeypatch.setattr("millwheel.runtime.interval.part_files.os.write", self.write)

    def write(self, file: int, data: Any) -> int:
        if not self.room:
            self.refused += 1
            raise OSError(self.error, os.strerror(self.error))
        written = self._write(file, data[: self.room])
        self.room -= written
        return written


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
async def test_without_room_an_append_fails_and_may_be_done_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    part = PartFile(path, 0)
    await part.append([b"first"])
    disk = Disk(monkeypatch, 7, error)
    with pytest.raises(OutputFull, match=f"{path} cannot be written: .*. Make room there"):
        await part.append([b"second", b"third"])
    assert written(path) == b"first\nsecond\n"
    part.restore(6)
    disk.room = 100
    await part.append([b"second", b"third"])
    assert written(path) == b"first\nsecond\nthird\n"
    assert part.length == 19
    part.close()


@pytest.mark.parametrize("error", [errno.EROFS, errno.EIO, errno.EFBIG])
async def test_what_room_does_not_mend_ends_at_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    Disk(monkeypatch, 0, error)
    part = PartFile(path, 0)
    with pytest.raises(OutputError, match="Mend that, and start again") as raised:
        await part.append([b"first"])
    assert not isinstance(raised.value, OutputFull)
    part.close()


async def test_close_does_not_wait_for_a_slow_disk(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that appends closes the file: its number may be another file's by then."""
    part = PartFile(path, 0)
    started, slow = threading.Event(), threading.Event()
    fsync = os.fsync

    def wait(file: int) -> None:
        started.set()
        assert slow.wait(60)
        fsync(file)

    monkeypatch.setattr("millwheel.runtime.interval.part_files.os.fsync", wait)
    appending = asyncio.create_task(part.append([b"first"]))
    await asyncio.to_thread(started.wait, 60)
    part.close()
    slow.set()
    await appending
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it has let the lock go


def filling(path: Path) -> World:
    pipeline = tally_pipeline(
        script(ITEMS, items(*range(12))),
        settings=replace(QUICK, store_patience_seconds=60.0, chunk_records=3),
    )
    pipeline.sink(TALLY, JsonLinesFiles(path.parent))
    return World(pipeline)


async def test_a_full_disk_is_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = filling(path)
    disk = Disk(monkeypatch, 50, errno.ENOSPC)
    engine = await world.start()
    observed = EngineObserved(engine)
    await world.until(lambda: disk.refused >= 3, tick=0.05)
    reason = await observed.why_not_ready()
    assert reason is not None
    assert "No space left on device. Make room there" in reason
    disk.room = 1 << 20
    await world.until(engine.done.is_set, tick=0.05)
    assert await observed.why_not_ready() is None
    await engine.stop()
    assert written_numbers(path.parent) == list(range(12))


async def test_patience_with_a_full_disk_ends(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = filling(path)
    disk = Disk(monkeypatch, 50, errno.ENOSPC)
    engine = await world.start()
    with pytest.raises(OutputFull, match=r"No space left on device.*\(tried for 60 s\)") as raised:
        await world.until(engine.done.is_set, tick=0.5)
    assert raised.value.exit_code == 11
    assert isinstance(raised.value.__cause__, OutputFull)
    assert world.clock.monotonic() - raised.value.__cause__.since > 60
    await engine.kill()
    disk.room = 1 << 20
    again = await world.start()
    await world.finish(again)
    assert written_numbers(path.parent) == list(range(12))


async def test_a_broken_disk_ends_the_worker(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = filling(path)
    Disk(monkeypatch, 0, errno.EIO)
    engine = await world.start()
    with pytest.raises(OutputError, match="cannot be written"):
        await world.until(engine.done.is_set)
    await engine.kill()
