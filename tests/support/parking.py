"""Pipelines with records that fail until they are mended, and what an operator does about their
keys."""

from __future__ import annotations

from typing import Any

from millwheel import Context, Record, Timer
from millwheel.store.port.requests import DeadLetter
from tests.support.pipelines import Kept, doing, produce, script
from tests.support.values import ITEMS, Item, at
from tests.support.worlds import World

BAD: set[int] = set()
"""Numbers that `work` refuses."""


async def work(record: Record[Item], ctx: Context[Kept]) -> None:
    number = record.value.number
    if number in BAD:
        raise ValueError(f"{number} is bad")
    ctx.state.count += 1
    produce(ctx, number, ctx.state.count)


def world_of(*keys_and_numbers: tuple[str, int], on_error: Any = "park") -> tuple[World, Any]:
    source = script(ITEMS, [Item(key, n, float(n)) for key, n in keys_and_numbers])
    return World(doing(source, work, on_error=on_error)), source


def parked(world: World) -> list[tuple[int, str | None]]:
    """The number in each dead letter, and its part in a parked key."""
    return [(number_in(letter), letter.parked) for letter in world.store.dead_letters]


def number_in(letter: DeadLetter) -> int:
    return int(letter.value.partition('"number":')[2].partition(",")[0].rstrip("}"))


def drained(world: World) -> bool:
    """Whether everything that was injected is acknowledged."""
    return all(i.logs.are_drained for i in world.engines[-1].intervals if i.source_task is not None)


async def quiet(world: World) -> None:
    """Everything that can be done is done."""
    await world.turns(300, tick=0.05)
    failure = world.engines[-1].failure
    assert failure is None, failure


async def ask(world: World, verb: str, number: int, **payload: Any) -> str:
    """Ask for something about the dead letter of a number, and wait for its outcome."""
    (letter,) = (one for one in world.store.dead_letters if number_in(one) == number)
    key = (letter.key or b"").decode().strip('"')
    request = world.store.ask(verb, "do", key, payload, letter=letter)
    await world.until(lambda: world.store.outcome(request) is not None, tick=0.05)
    found = world.store.outcome(request)
    assert found is not None
    return found.outcome


async def set_timers(record: Record[Item], ctx: Context[Kept]) -> None:
    """Each record moves a timer to ten seconds after it, and tells the watermark that it sees."""
    if record.value.number in BAD:
        raise ValueError("it is bad")
    ctx.state.count = record.value.number
    ctx.set_timer(at(record.value.second + 10), "end")
    produce(ctx, record.value.number, ctx.low_watermark_micros // 1_000_000 % 1_000_000)


async def ring(timer: Timer, ctx: Context[Kept]) -> None:
    produce(ctx, -1, ctx.state.count)


def timed(*items: Item, **options: Any) -> tuple[World, Any]:
    source = script(ITEMS, items)
    return World(doing(source, set_timers, ring, **options)), source
