"""How a run ends: `sys.exit` and its like in user code fail the record, and end no worker with
their own code."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest
from structlog.testing import capture_logs

from millwheel import Bundles, Computation, Context, Pipeline, Record, Timer
from millwheel.errors import InputError, UserCodeError
from millwheel.services import loop
from tests.support.pipelines import QUICK, Quiet, doing, produce, script
from tests.support.values import ITEMS, Item, at, items, key_of, time_of
from tests.support.worlds import Gate, World


async def leave(record: Record[Item], ctx: Context[Any]) -> None:
    if record.value.number == 2:
        sys.exit(3)
    produce(ctx, record.value.number)


async def test_an_exit_is_the_records_fault() -> None:
    world = World(doing(items(1, 2, 3), leave, on_error="dead_letter", retries=1))
    await world.run()
    assert world.numbers() == [1, 3]
    assert [error for _, error in world.letters()] == ["SystemExit: 3"]
    await world.close()


async def test_an_exit_ends_the_worker_as_any_other_error_does() -> None:
    world = World(doing(items(1, 2, 3), leave))
    with pytest.raises(
        UserCodeError, match=r"'do' failed on a record of .*: SystemExit: 3"
    ) as raised:
        await world.run()
    assert isinstance(raised.value.__cause__, SystemExit)
    await world.close()


async def test_an_exit_in_a_timer_is_the_timers_fault() -> None:
    async def do(record: Record[Item], ctx: Context[Any]) -> None:
        ctx.set_timer(at(0))

    async def ring(timer: Timer, ctx: Context[Any]) -> None:
        raise KeyboardInterrupt

    world = World(doing([*items(1), *items(2, second=9)], do, ring, on_error="dead_letter"))
    await world.run(close_at_end=True)
    assert {error for _, error in world.letters()} == {"KeyboardInterrupt: "}
    await world.close()


async def test_an_exit_in_a_bundle_is_the_bundles_fault() -> None:
    class Outside(Computation[Item, None]):
        bundles = Bundles(records=2, seconds=0.0)

        async def process_bundle(self, records: Any, ctx: Context[None]) -> None:
            sys.exit("enough")

    pipeline = Pipeline("bundled", settings=QUICK)
    pipeline.inject(ITEMS, script(ITEMS, items(1, 2)), timestamp=time_of)
    pipeline.add(Outside(), ITEMS.by(key_of), on_error="dead_letter")
    world = World(pipeline)
    await world.run()
    assert [error for _, error in world.letters()] == ["SystemExit: enough"] * 2
    await world.close()


async def test_an_exit_of_a_function_of_inject_or_by_is_the_rows_fault() -> None:
    def refuse(item: Item) -> Any:
        sys.exit(4)

    for timestamp, key in ((refuse, key_of), (time_of, refuse)):
        pipeline = Pipeline("refusing", settings=QUICK)
        pipeline.inject(ITEMS, script(ITEMS, items(1)), timestamp=timestamp)
        pipeline.add(Quiet(), ITEMS.by(key))
        world = World(pipeline)
        with pytest.raises(InputError, match="SystemExit: 4"):
            await world.run()
        await world.close()


def test_an_exit_in_a_task_reaches_who_awaits_it_and_ends_nothing_else() -> None:
    async def leave_now() -> None:
        sys.exit(3)

    async def work() -> list[str]:
        found = []
        try:
            await asyncio.create_task(leave_now())
        except SystemExit as error:
            found.append(f"awaited {error}")
        stray = asyncio.create_task(leave_now())
        await asyncio.wait((stray,))
        found.append(f"not awaited {stray.exception()}")
        return found

    with capture_logs() as logs:
        assert loop.run(work()) == ["awaited 3", "not awaited 3"]
    assert [line["error"] for line in logs] == ["SystemExit: 3"] * 2


def test_sigterm_before_anything_runs_ends_with_its_code() -> None:
    async def main() -> None:
        raise SystemExit(loop.TERMINATED)

    with pytest.raises(SystemExit) as raised:
        loop.run(main())
    assert raised.value.code == 143


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_a_run_ends_with_its_engine_whatever_it_waits_for(end: str) -> None:
    """Here it waits for a first look at requests, without which it cannot be done."""
    gate = Gate()
    world = World(doing(items(1), leave))

    async def waits(*_: Any) -> list[Any]:
        await gate.wait()
        return []

    world.store.open_requests = waits  # type: ignore[method-assign,assignment]
    engine = await world.start()
    run = asyncio.create_task(engine.run())
    await world.until(lambda: gate.reached == 1)
    await getattr(engine, end)()
    await asyncio.wait_for(run, 10)
    await world.close()
