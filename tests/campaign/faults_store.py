"""What happens to Postgres, and between it and a worker."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from typing import Any

import psycopg

from tests.campaign.cgroup import limited, remove, was_oom
from tests.campaign.crew import Hand
from tests.campaign.faults import NOBODY, Outcome, Scene, fault, on_one, until
from tests.campaign.looker import connect
from tests.campaign.reader import wait_for
from tests.campaign.sites import Lagging, Replicated, SmallDisk, Stepping
from tests.campaign.wire import FATES, Wire

DOWN_SECONDS = 2.0
"""For up to so long the server stays away."""
BACKENDS = """
SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'millwheel%%'
AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""
BACKENDS_SECONDS, BACKENDS_LOOKS = 5.0, 50
DISCARDED = "discarding closed connection"
"""So psycopg's pool says it: the transaction was no lane's commit."""

LOCKED = ("worker", "commit_record", "interval", "ledger", "receipt")
"""Tables that a stranger may lock."""

OOM_HOG_MEGABYTES = 4096
"""More than any group has."""
OOM_SECONDS = 15.0


async def _query(scene: Scene, query: str) -> list[Any]:
    def ask() -> list[Any]:
        with contextlib.suppress(psycopg.Error), connect(scene.crew.site.url) as connection:
            return connection.execute(query.encode()).fetchall()
        return []

    return await asyncio.to_thread(ask)


async def _backends(scene: Scene) -> list[Any]:
    """Server processes of workers; waited for, for a while: it may just have crashed."""
    for _ in range(BACKENDS_LOOKS):
        if found := await _query(scene, BACKENDS):
            return found
        await asyncio.sleep(BACKENDS_SECONDS / BACKENDS_LOOKS)
    return []


@fault("postgres", counts_as="crash")
async def postgres(scene: Scene) -> Outcome:
    """The server stops at once, without a checkpoint (SIGQUIT), and starts again within two
    seconds."""
    site = scene.crew.site
    async with scene.site_lock:
        was_up = site.postmaster() is not None
        await asyncio.to_thread(site.crash)
        await asyncio.sleep(scene.draw.uniform(0, DOWN_SECONDS))
        await asyncio.to_thread(site.start)
    return Outcome(was_up)


@fault("backend killed", counts_as="crash")
async def backend_killed(scene: Scene) -> Outcome:
    """SIGKILL to the server process of one connection, possibly in the middle of a statement: the
    server ends all others and recovers."""
    async with scene.site_lock:
        found = await _backends(scene)
        if not found:
            return NOBODY
        pid = scene.draw.choice(found)[0]
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            back = await asyncio.to_thread(wait_for, scene.crew.site.url, 30.0)
            return Outcome(back)
    return NOBODY


@fault("backends")
async def backends(scene: Scene) -> Outcome:
    """Half of the workers' sessions are terminated."""
    found = await _backends(scene)
    chosen = scene.draw.sample(found, k=(len(found) + 1) // 2)
    if not chosen:
        return NOBODY
    pids = ", ".join(str(pid) for (pid,) in chosen)
    ended = await _query(scene, f"SELECT pg_terminate_backend(p) FROM unnest(ARRAY[{pids}]) AS p")
    return Outcome(any(done for (done,) in ended), f"{len(ended)} sessions")


async def _unknown(scene: Scene, hand: Hand, fate: str) -> Outcome:
    owned, since, wire = scene.owned(hand), time.time(), hand.wire
    assert wire is not None
    before = len(wire.met)
    wire.late_seconds = scene.draw.uniform(0.2, 2)
    wire.fate = fate
    met = await until(lambda: len(wire.met) > before or not hand.alive, 8.0)
    wire.fate = ""
    if not met or len(wire.met) == before:
        return Outcome(False, "no commit came by", ())

    def said() -> set[str]:
        return {
            str(event.get("event"))[: len(DISCARDED)] for at, event in hand.heard if at >= since
        }

    told = await until(lambda: said() & {"commit_failed", DISCARDED}, 5.0)
    note = fate if "commit_failed" in said() else f"{fate}, a claim's or a fold's"
    return Outcome(told, note if told else f"{fate}; it said {sorted(said())}", owned)


for _fate in FATES:

    async def _strike(scene: Scene, hand: Hand, fate: str = _fate) -> Outcome:
        return await _unknown(scene, hand, fate)

    _strike.__doc__ = {
        "unsent": "The connection is cut as a commit is sent, and the server never receives it.",
        "sent": "The connection is cut as soon as a commit is on its way to the server.",
        "answered": (
            "The connection is cut when the server has committed and answered, before the worker "
            "receives the answer."
        ),
        "late": (
            "The connection is cut as a commit is sent, and the commit reaches the server up to "
            "two seconds later."
        ),
    }[_fate]
    fault(f"commit unknown, {_fate}", "wire")(on_one(_strike))


@fault("wire cut", "wire")
@on_one
async def wire_cut(scene: Scene, hand: Hand) -> Outcome:
    """All connections of a worker to the server break, in any state."""
    owned, since = scene.owned(hand), time.time()
    _wire(hand).cut()
    told = await until(lambda: hand.has_said("commit_failed", since), 5.0)
    return Outcome(told, intervals=owned)


@fault("wire stalled", "wire", counts_as="partition")
@on_one
async def wire_stalled(scene: Scene, hand: Hand) -> Outcome:
    """No data passes between a worker and the server for up to two leases, and no connection
    breaks; then all of it arrives."""
    owned = scene.owned(hand)
    _wire(hand).stall()
    try:
        await asyncio.sleep(scene.crew.work.lease_seconds * scene.draw.uniform(0.5, 2))
        lost = owned - scene.owned(hand)
    finally:
        _wire(hand).resume()
    await scene.replace()
    return Outcome(True, f"{len(lost)} of {len(owned)} intervals lost", owned)


def _wire(hand: Hand) -> Wire:
    assert hand.wire is not None
    return hand.wire


@fault("pool exhausted")
async def pool_exhausted(scene: Scene) -> Outcome:
    """Another program takes all remaining connections of the server, while the workers lose half of
    theirs."""
    url, held = scene.crew.site.url, []

    def take() -> bool:
        try:
            while True:
                held.append(psycopg.connect(url, application_name="stranger", autocommit=True))
        except psycopg.OperationalError as error:
            return "too many" in str(error) or "remaining connection slots" in str(error)

    try:
        full = await asyncio.to_thread(take)
        if held:

            def terminate() -> None:
                with contextlib.suppress(psycopg.Error):
                    pids = [pid for (pid,) in held[0].execute(BACKENDS.encode()).fetchall()]
                    for pid in pids[::2]:
                        held[0].execute("SELECT pg_terminate_backend(%s)", [pid])

            await asyncio.to_thread(terminate)
            full |= await asyncio.to_thread(take)
        await asyncio.sleep(scene.draw.uniform(2, 6))
    finally:
        for connection in held:
            connection.close()
    return Outcome(full, f"{len(held)} connections of a stranger's")


@fault("held snapshot")
async def held_snapshot(scene: Scene) -> Outcome:
    """A session holds a snapshot of the whole store for up to twenty seconds: nothing can be
    vacuumed."""
    before = scene.pulse.commits

    def hold(seconds: float) -> bool:
        with contextlib.suppress(psycopg.Error), connect(scene.crew.site.url) as connection:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            (first,) = connection.execute("SELECT count(*) FROM states").fetchone() or (0,)
            time.sleep(seconds)
            (then,) = connection.execute("SELECT count(*) FROM states").fetchone() or (-1,)
            connection.execute("ROLLBACK")
            return bool(first == then)
        return False

    held = await asyncio.to_thread(hold, scene.draw.uniform(5, 20))
    return Outcome(held and scene.pulse.commits > before)


@fault("locked")
async def locked(scene: Scene) -> Outcome:
    """A session that is no worker's locks a table for up to twelve seconds: commits or heartbeats
    wait, and workers name the session."""
    since, table = time.time(), scene.draw.choice(LOCKED)

    def hold(seconds: float) -> bool:
        with contextlib.suppress(psycopg.Error), connect(scene.crew.site.url) as connection:
            connection.execute("BEGIN")
            connection.execute("SET LOCAL lock_timeout = '5s'")
            connection.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE".encode())
            time.sleep(seconds)
            connection.execute("ROLLBACK")
            return True
        return False

    held = await asyncio.to_thread(hold, scene.draw.uniform(7, 12))
    said = [event for hand in scene.crew.alive for event in hand.has_said("store_waits", since)]
    named = any(event["sessions"] for event in said)
    return Outcome(held and named, f"{table}: {len(said)} lines")


@fault("disk full", "small disk")
async def disk_full(scene: Scene) -> Outcome:
    """The file system of the server is full for some seconds; then it has space again, and the
    server is started if it ended."""
    site = scene.crew.site
    assert isinstance(site, SmallDisk)
    failed = scene.crew.report.events["commit_failed"]
    async with scene.site_lock:
        await asyncio.to_thread(site.fill)
        noticed = await until(lambda: scene.crew.report.events["commit_failed"] > failed, 20.0)
        await asyncio.sleep(scene.draw.uniform(0, 3))
        site.free()
        for _ in range(3):
            await asyncio.to_thread(site.start)
            if await asyncio.to_thread(wait_for, site.url, 10.0):
                break
    return Outcome(noticed)


@fault("failover", "replicated", counts_as="crash")
async def failover(scene: Scene) -> Outcome:
    """SIGKILL to all processes of the primary; its synchronous standby is promoted and gets a new
    standby."""
    site = scene.crew.site
    assert isinstance(site, Replicated)
    async with scene.site_lock:
        before = scene.pulse.commits
        await asyncio.to_thread(site.fail_over)
        went_on = await until(lambda: scene.pulse.commits > before, 40.0)
        await asyncio.to_thread(site.recover)
    return Outcome(went_on)


@fault("failover that loses", "lagging", counts_as="crash")
async def failover_that_loses(scene: Scene) -> Outcome:
    """An asynchronous standby falls behind for up to two seconds; then the primary is killed, and
    the standby is promoted without its newest commits."""
    site = scene.crew.site
    assert isinstance(site, Lagging)
    async with scene.site_lock:
        before = scene.pulse.commits
        try:
            held = await asyncio.to_thread(site.hold_back)
            await asyncio.sleep(scene.draw.uniform(0.2, 2))
            lost = await asyncio.to_thread(site.newest) - held
        except psycopg.OperationalError:  # it has just crashed
            lost = 0
        await asyncio.to_thread(site.fail_over)
        went_on = await until(lambda: scene.pulse.commits > before, 40.0)
        await asyncio.to_thread(site.recover)
    return Outcome(went_on and lost > 0, f"{lost} bytes of WAL lost")


async def _set_clock(scene: Scene, seconds: int) -> Outcome:
    site = scene.crew.site
    assert isinstance(site, Stepping)
    async with scene.site_lock:
        await asyncio.to_thread(site.set_clock, seconds)
        before = scene.pulse.commits
        went_on = await until(lambda: scene.pulse.commits > before, 40.0)
        await asyncio.sleep(scene.draw.uniform(0, 4))
    return Outcome(went_on, f"{seconds} s ahead")


@fault("server clock back", "stepping")
async def server_clock_back(scene: Scene) -> Outcome:
    """The clock of the database's machine is set back by up to five minutes."""
    return await _set_clock(scene, -round(scene.draw.uniform(3, 300)))


@fault("server clock forward", "stepping")
async def server_clock_forward(scene: Scene) -> Outcome:
    """The clock of the database's machine is set forward by up to five minutes."""
    return await _set_clock(scene, round(scene.draw.uniform(3, 300)))


@fault("out of memory", "cgroup", counts_as="kill")
@on_one
async def out_of_memory(scene: Scene, hand: Hand) -> Outcome:
    """A worker allocates memory until the kernel kills it, at the limit of its control group."""
    owned = scene.owned(hand)
    hand.expected.add(-signal.SIGKILL)
    group = limited(scene.cgroup, hand.pid)
    try:
        hand.control.set("hog", OOM_HOG_MEGABYTES)
        died = await until(lambda: not hand.alive, OOM_SECONDS)
        by_kernel = was_oom(group)
    finally:
        hand.control.set("hog", 0)
        if hand.alive:
            await hand.end(signal.SIGKILL, -signal.SIGKILL)
        remove(group)
    await scene.replace_soon()
    return Outcome(died and by_kernel, intervals=owned)
