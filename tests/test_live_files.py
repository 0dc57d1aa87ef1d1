"""Pipelines on files that others write: what an engine makes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import pytest

from millwheel import JsonLines, Pipeline, Table
from millwheel.errors import InputError
from millwheel.sources import Source
from tests.test_runtime_world import (
    ITEMS,
    QUICK,
    TALLY,
    Counted,
    Item,
    Tally,
    World,
    key_of,
    time_of,
)

DEADLINE_SECONDS = 30.0


def lines(numbers: Iterable[int]) -> bytes:
    return b"".join(msgspec.json.encode(Item("k", n, n)) + b"\n" for n in numbers)


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def world_of(source: Source, **options: object) -> World:
    made = Pipeline("world", settings=QUICK)
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
