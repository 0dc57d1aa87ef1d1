"""The event loop on virtual time: jumps, order, machines that stand still or end."""

from __future__ import annotations

import asyncio

import pytest

from millwheel.testing.virtual_loop import NothingToDo, current_machine, new_loop


async def tick(seen: list[tuple[str, float]], name: str) -> None:
    try:
        while True:
            await asyncio.sleep(1)
            seen.append((name, asyncio.get_running_loop().time()))
    finally:
        seen.append((name, -1.0))


def test_a_year_of_sleeping_costs_some_steps() -> None:
    loop = new_loop()
    loop.run(asyncio.sleep(365 * 86_400))
    assert loop.time() == 365 * 86_400
    assert loop.steps < 10


def test_what_is_due_at_one_instant_happens_in_the_order_in_which_it_was_asked_for() -> None:
    loop, seen = new_loop(), list[int]()
    for number in range(5):
        loop.call_later(1.0, seen.append, number)
    loop.run(asyncio.sleep(2))
    assert seen == [0, 1, 2, 3, 4]


def test_timeouts_go_by_virtual_time() -> None:
    async def wait() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert new_loop().run(wait()) == 3600


def test_who_waits_for_what_never_happens_is_told() -> None:
    with pytest.raises(NothingToDo):
        new_loop().run(asyncio.Event().wait())


def test_a_thread_is_a_call() -> None:
    assert new_loop().run(asyncio.to_thread(sum, [1, 2])) == 3


def test_a_paused_machine_does_later_what_came_meanwhile_and_a_crashed_one_nothing() -> None:
    loop, seen = new_loop(), list[tuple[str, float]]()
    one, other = loop.machine("one"), loop.machine("other")
    one.start(tick(seen, "one"))
    other.start(tick(seen, "other"))

    async def play() -> None:
        await asyncio.sleep(1.5)
        one.pause()
        await asyncio.sleep(2)
        one.go_on()
        other.crash()
        await asyncio.sleep(2)

    loop.run(play())
    assert [at for name, at in seen if name == "one"] == [1.0, 3.5, 4.5, 5.5]
    assert [at for name, at in seen if name == "other"] == [1.0, 2.0, 3.0]
    loop.close()
    assert seen[-2:] == [("one", -1.0), ("other", -1.0)], "only the end of the loop ends them"


def test_what_a_machine_starts_belongs_to_it_and_it_may_end_after_so_many_steps() -> None:
    loop, seen = new_loop(), list[str]()
    machine = loop.machine("one")

    async def child() -> None:
        found = current_machine()
        seen.append(found.name if found else "")
        await asyncio.sleep(0)
        seen.append("never")

    async def parent() -> None:
        seen.append("parent")
        task = asyncio.create_task(child())
        await task

    machine.start(parent())
    machine.after(2, machine.crash)  # the parent's first step, and the child's
    loop.run(asyncio.sleep(5))
    assert seen == ["parent", "one"]
    loop.close()


def test_an_error_of_anybody_may_end_the_run() -> None:
    loop = new_loop()
    loop.call_later(1.0, loop.fail, ValueError("seen by a bystander"))
    with pytest.raises(ValueError, match="bystander"):
        loop.run(asyncio.sleep(10))
    assert loop.time() == 1.0
