from __future__ import annotations

import asyncio

from millwheel.errors import StoreUnavailable, StoreWentBack, UsageError
from millwheel.runtime.environment import Environment
from millwheel.runtime.ownership.owned_intervals import OwnedIntervals
from millwheel.runtime.process.lease import Lease
from millwheel.runtime.process.tasks import end

HAND_OVER_SECONDS = 3.0


async def register(env: Environment, lease: Lease, address: str) -> None:
    asked = env.clock.monotonic()
    await env.store.register_worker(
        env.worker,
        env.settings.lease_seconds,
        address=address,
        generation=env.generation,
        load=env.options.in_load,
    )
    lease.renewed(asked)


async def end_dead_workers(env: Environment, pipeline: str, *, take_over: bool) -> None:
    """End the dead workers of a pipeline that only one worker may run.

    `take_over` ends live workers as well: their commits will be fenced. Otherwise a live one is a
    `UsageError`.
    """
    for other in await env.store.other_workers(env.worker):
        if take_over or other.lease_left <= 0 or env.store.is_dead(other):
            await env.store.end_worker(other)
            continue
        await env.store.stop_worker(env.worker)
        raise UsageError(
            f"pipeline {pipeline!r} is being run by process {other.pid} on "
            f"{other.host.split()[0]!r} (its lease ends in {other.lease_left:.0f} s unless "
            "renewed). Stop that process first, or wait for its lease to end"
        )


async def hand_all_over(env: Environment, owned: OwnedIntervals) -> None:
    """Drain and release intervals within `HAND_OVER_SECONDS`.

    Other workers claim the rest after this worker has given up its lease.
    """
    handing = asyncio.create_task(owned.give_up_all())
    late = asyncio.create_task(env.clock.sleep(HAND_OVER_SECONDS))
    await asyncio.wait((handing, late), return_when=asyncio.FIRST_COMPLETED)
    late.cancel()
    if not handing.done():
        env.log.warning("not_handed_over", intervals=[i.name for i in owned.held if i.lane])
        await end([handing])
        return
    for error in handing.result():
        env.log.warning("not_handed_over", error=str(error))


async def give_up_lease(env: Environment) -> None:
    try:
        await env.store.stop_worker(env.worker)
    except (StoreUnavailable, StoreWentBack) as error:
        env.log.warning("lease_not_given_up", error=str(error))
