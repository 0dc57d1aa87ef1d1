"""Pipelines on files that others write: what an engine makes of them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millwheel import JsonLines, Pipeline, Settings, Table
from millwheel.errors import InputError
from millwheel.files import followed_files
from millwheel.runtime.ownership.owned_intervals import OwnedIntervals
from millwheel.runtime.source.partition_discovery import PartitionDiscovery
from millwheel.sources import Source
from millwheel.store.port.commit import Commit
from tests.support.pipelines import QUICK, Tally
from tests.support.values import ITEMS, TALLY, Counted, Item, key_of, time_of
from tests.support.worlds import World

DEADLINE_SECONDS = 30.0


def lines(numbers: Iterable[int]) -> bytes:
    return b"".join(msgspec.json.encode(Item("k", n, n)) + b"\n" for n in numbers)


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def world_of(source: Source, limits: Settings = QUICK, **options: object) -> World:
    made = Pipeline("world", settings=limits)
    made.inject(ITEMS, source, timestamp=time_of, **options)  # type: ignore[arg-type]
    made.add(Tally(), ITEMS.by(key_of))
    made.sink(TALLY, Table("out", Counted))
    return World(made)


async def until(world: World, condition: Callable[[], object]) -> None:
    """Real files wake it: real time passes."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not condition():
            if (failure := world.engines[-1].failure) is not None:
                raise failure
            world.clock.advance(0.05)
            await asyncio.sleep(0.001)


def _discovery(world: World) -> PartitionDiscovery:
    tasks = world.engines[-1].exchange.source_tasks
    (found,) = [task for task in tasks if isinstance(task, PartitionDiscovery)]
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "items.jsonl"


async def test_appended_lines_come_out_of_a_running_engine(path: Path) -> None:
    append(path, lines(range(3)))
    world = world_of(JsonLines(path, follow=True, poll=0.01))
    await world.start()
    await until(world, lambda: world.numbers() == [0, 1, 2])
    append(path, lines([3])[:-4])
    append(path, lines([3])[-4:] + lines([4]))
    await until(world, lambda: world.numbers() == [0, 1, 2, 3, 4])
    path.rename(path.with_name("items.jsonl.1"))
    append(path, lines([5, 6]))
    await until(world, lambda: world.numbers() == [0, 1, 2, 3, 4, 5, 6])
    await world.engines[-1].stop()
    append(path, lines([7]))
    path.rename(path.with_name("items.jsonl.0"))
    append(path, lines([8]))
    await world.start()
    await until(world, lambda: world.numbers() == list(range(9)))
    assert [row[2] for row in world.rows()] == list(range(1, 10)), "each was counted once"
    await world.close()


async def test_a_bad_row_is_corrected_and_the_pipeline_goes_on(path: Path) -> None:
    """However far the rows behind it were read ahead."""
    good = lines(range(3_000)).splitlines(keepends=True)
    path.write_bytes(b"".join([*good[:2_000], b'{"key":"k"}\n', *good[2_001:]]))
    world = world_of(JsonLines(path))
    with pytest.raises(InputError, match="line 2001"):
        await world.run(close_at_end=True)
    path.write_bytes(b"".join(good))
    await world.run(close_at_end=True)
    assert world.numbers() == list(range(3_000))
    await world.close()


@pytest.mark.parametrize("on_error", ["fail", "dead_letter"])
async def test_a_half_written_line_is_read_when_it_is_whole(path: Path, on_error: str) -> None:
    whole = lines(range(2))
    path.write_bytes(whole[:-6])
    world = world_of(JsonLines(path), on_error=on_error)
    with pytest.raises(InputError, match="line 2: the file ends within this line"):
        await world.run(close_at_end=True)
    path.write_bytes(whole)
    await world.run(close_at_end=True)
    assert world.numbers() == [0, 1]
    assert world.letters() == []
    await world.close()


async def test_files_that_appear_in_a_directory_are_read(tmp_path: Path) -> None:
    world = world_of(JsonLines(f"{tmp_path}/", follow=True, poll=0.01))
    append(tmp_path / "a", lines([0]))
    await world.start()
    await until(world, lambda: world.numbers() == [0])
    append(tmp_path / "b", lines([1]))
    await until(world, lambda: world.numbers() == [0, 1])
    append(tmp_path / "a", lines([2]))
    await until(world, lambda: world.numbers() == [0, 1, 2])
    await world.engines[-1].stop()
    append(tmp_path / "c", lines([3]))
    append(tmp_path / "b", lines([4]))
    await world.start()
    await until(world, lambda: sorted(world.numbers()) == [0, 1, 2, 3, 4])
    await world.close()


async def test_a_file_is_read_that_is_renamed_before_its_partition_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As writers do that write under another name; a partition is opened up to a second later."""
    real = OwnedIntervals.take_new

    def appeared(owned: OwnedIntervals, interval_ids: list[int]) -> None:
        (tmp_path / "a.part").rename(tmp_path / "a.jsonl")
        real(owned, interval_ids)

    monkeypatch.setattr(OwnedIntervals, "take_new", appeared)
    world = world_of(JsonLines(f"{tmp_path}/", follow=True, poll=0.01))
    append(tmp_path / "a.part", lines([0, 1]))
    await world.start()
    await until(world, lambda: world.numbers() == [0, 1])
    append(tmp_path / "a.jsonl", lines([2]))
    await until(world, lambda: world.numbers() == [0, 1, 2])
    await world.close()


async def test_a_file_is_no_new_one_that_is_renamed_after_a_crash(tmp_path: Path) -> None:
    """The discovery has nothing else to store: another file holds the low watermark."""
    world = world_of(JsonLines(f"{tmp_path}/*.jsonl", follow=True, poll=0.01))
    append(tmp_path / "silent.jsonl", lines([0]))
    await world.start()
    await until(world, lambda: world.numbers() == [0])
    append(tmp_path / "a.jsonl", lines([1, 2]))
    await until(world, lambda: sorted(world.numbers()) == [0, 1, 2])
    await world.engines[-1].kill()
    (tmp_path / "a.jsonl").rename(tmp_path / "b.jsonl")
    append(tmp_path / "b.jsonl", lines([3]))
    await world.start()
    await until(world, lambda: 3 in world.numbers())
    append(tmp_path / "c.jsonl", lines([4]))
    await until(world, lambda: 4 in world.numbers())
    assert sorted(world.numbers()) == [0, 1, 2, 3, 4]
    await world.close()


async def test_a_file_that_was_moved_to_another_directory_is_read_to_its_end(
    tmp_path: Path,
) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "done").mkdir()
    world = world_of(JsonLines(f"{tmp_path}/**/*.jsonl", follow=True, poll=0.01))
    append(tmp_path / "new" / "a.jsonl", lines([0]))
    await world.start()
    await until(world, lambda: world.numbers() == [0])
    await world.engines[-1].stop()
    append(tmp_path / "new" / "a.jsonl", lines([1]))
    (tmp_path / "new" / "a.jsonl").rename(tmp_path / "done" / "a.jsonl")
    await world.start()
    await until(world, lambda: world.numbers() == [0, 1])
    append(tmp_path / "done" / "a.jsonl", lines([2]))
    await until(world, lambda: world.numbers() == [0, 1, 2])
    await world.close()


@pytest.mark.parametrize("is_directory", [False, True])
async def test_a_rotation_after_a_crash_at_the_first_commit_loses_nothing(
    path: Path, is_directory: bool
) -> None:
    """Rows have had their effects in one lane, and the other one was slow to store a position."""
    source = JsonLines(path.parent if is_directory else path, follow=True, poll=0.01)
    world = world_of(source, replace(QUICK, intervals=2))
    hit = []

    def slow(commit: Commit) -> Coroutine[Any, Any, None] | None:
        has_position = any(link.position is not None for link in commit.intervals)
        return asyncio.sleep(0.2) if has_position else None

    async def for_ever() -> None:
        await asyncio.Event().wait()

    def durable(commit: Commit) -> Coroutine[Any, Any, None] | None:
        if any(commit.seen.values()):
            hit.append(commit)
            return for_ever()
        return None

    append(path, lines([0, 1]))
    world.on_try, world.on_durable = slow, durable
    await world.start()
    await until(world, lambda: hit)
    await world.engines[-1].kill()
    world.on_try = world.on_durable = None
    append(path, lines([2]))
    path.rename(path.with_name("items.jsonl.1"))
    append(path, lines([3, 4]))
    await world.start()
    await until(world, lambda: len(world.numbers()) >= 5)
    assert sorted(world.numbers()) == [0, 1, 2, 3, 4]
    await world.close()


async def test_files_that_were_removed_leave_no_interval_and_no_descriptor(tmp_path: Path) -> None:
    """They hold nothing, their space is free, and their slots are used again; others go on."""
    world = world_of(JsonLines(f"{tmp_path}/", follow=True, poll=0.01))
    await world.start()
    count = 12
    for n in range(count):
        append(tmp_path / f"f{n}", lines([n]))
    await until(world, lambda: sorted(world.numbers()) == list(range(count)))
    watermarks = world.engines[-1].publisher.watermarks

    async def intervals() -> list[tuple[int, int]]:
        rows = (await world.store.read_placement()).intervals
        return sorted((row.slot_from, row.slot_to) for row in rows if row.kind == "injector")

    before = watermarks.least(world.engines[-1].exchange.intervals[0].step.id)
    for n in range(1, count):
        (tmp_path / f"f{n}").unlink()
    await until(world, lambda: len(_discovery(world)._known) == 1)
    assert len(world.engines[-1].injectors) == 1
    assert await intervals() == [(0, 1), (1, 2)]
    held = [
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if fd.isdigit() and os.path.exists(f"/proc/self/fd/{fd}")
    ]
    assert not [path for path in held if str(tmp_path) in path and "deleted" in path]
    append(tmp_path / "f1", lines([100]))
    append(tmp_path / "f0", lines([101]))
    await until(world, lambda: {100, 101} <= set(world.numbers()))
    assert max(to for _, to in await intervals()) <= count
    assert watermarks.least(world.engines[-1].exchange.intervals[0].step.id) >= before
    await world.engines[-1].kill()
    append(tmp_path / "f2", lines([102]))
    await world.start()
    await until(world, lambda: 102 in world.numbers())
    assert sorted(world.numbers()) == [*range(count), 100, 101, 102]
    await world.close()


async def test_files_that_do_not_grow_leave_no_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are finished. One that grows again is read from there, also after a crash, and in a
    copy."""
    monkeypatch.setattr(followed_files, "FINISHED_SECONDS", 0.5)
    world = world_of(JsonLines(f"{tmp_path}/", follow=True, poll=0.1))
    count = 60
    for n in range(count):
        append(tmp_path / f"f{n}", lines([n]))
    append(tmp_path / "unfinished", lines([count]) + b'{"key": ')
    await world.start()
    await until(world, lambda: sorted(world.numbers()) == list(range(count + 1)))
    await until(world, lambda: len(_discovery(world)._known) == 1)
    rows = (await world.store.read_placement()).intervals
    assert len([row for row in rows if row.kind == "injector"]) == 2
    append(tmp_path / "f7", lines([1000, 1001]))
    await until(world, lambda: {1000, 1001} <= set(world.numbers()))
    await until(world, lambda: len(_discovery(world)._known) == 1)
    append(tmp_path / "f7", lines([1002]))
    await until(world, lambda: 1002 in world.numbers())
    await world.engines[-1].kill()
    append(tmp_path / "f8", lines([1003]))
    (tmp_path / "f8.1").write_bytes((tmp_path / "f8").read_bytes())
    (tmp_path / "f8").write_bytes(lines([1004]))
    (tmp_path / "f9").rename(tmp_path / "g9")
    append(tmp_path / "g9", lines([1005]))
    await world.start()
    await until(world, lambda: {1003, 1004, 1005} <= set(world.numbers()))
    await until(world, lambda: len(_discovery(world)._known) == 1)
    assert sorted(world.numbers()) == [*range(count + 1), *range(1000, 1006)]
    await world.close()


async def test_the_name_of_a_file_is_stored_when_it_was_seen(tmp_path: Path) -> None:
    """A copy that is made after a crash is called like the renamed file, and not like the first."""
    world = world_of(JsonLines(f"{tmp_path}/", follow=True, poll=0.01))
    append(tmp_path / "first", lines([0, 1]))
    await world.start()
    await until(world, lambda: world.numbers() == [0, 1])
    renamed = tmp_path / "second"
    (tmp_path / "first").rename(renamed)
    await until(world, lambda: any(str(renamed) in str(commit) for commit in world.commits))
    await world.engines[-1].kill()
    append(renamed, lines([2]))
    (tmp_path / "second.1").write_bytes(renamed.read_bytes())
    renamed.write_bytes(lines([3]))
    await world.start()
    await until(world, lambda: {2, 3} <= set(world.numbers()))
    append(tmp_path / "third", lines([4]))
    await until(world, lambda: 4 in world.numbers())
    assert sorted(world.numbers()) == [0, 1, 2, 3, 4]
    await world.close()


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("", ["batch.jsonl", "batch-2.jsonl", "batch-3.jsonl"]),
        ("", ["data", "data.1", "data.2"]),
        ("*.jsonl", ["orders.jsonl", "orders_20260102.jsonl"]),
        ("*.jsonl", ["orders_20260102.jsonl", "orders.jsonl", "orders_20260103.jsonl"]),
    ],
)
async def test_a_name_makes_no_file_a_rotated_one(
    tmp_path: Path, pattern: str, names: list[str]
) -> None:
    world = world_of(JsonLines(f"{tmp_path}/{pattern}", follow=True, poll=0.01))
    await world.start()
    for number, name in enumerate(names):
        append(tmp_path / name, lines([number]))
        await until(world, lambda number=number: len(world.numbers()) == number + 1)  # type: ignore[misc]
    await world.engines[-1].stop()
    append(tmp_path / names[0], lines([100]))
    await world.start()
    await until(world, lambda: len(world.numbers()) == len(names) + 1)
    assert sorted(world.numbers()) == [*range(len(names)), 100]
    await world.close()


async def test_a_file_that_is_moved_over_another_one_comes_once(tmp_path: Path) -> None:
    world = world_of(JsonLines(f"{tmp_path}/", follow=True, poll=0.01))
    append(tmp_path / "yesterday.jsonl", lines([0, 1]))
    append(tmp_path / "today.jsonl", lines([10, 11]))
    await world.start()
    await until(world, lambda: sorted(world.numbers()) == [0, 1, 10, 11])
    (tmp_path / "today.jsonl").rename(tmp_path / "yesterday.jsonl")
    append(tmp_path / "yesterday.jsonl", lines([12]))
    append(tmp_path / "today.jsonl", lines([20]))
    await until(world, lambda: {12, 20} <= set(world.numbers()))
    assert sorted(world.numbers()) == [0, 1, 10, 11, 12, 20]
    await world.close()
