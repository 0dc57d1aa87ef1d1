"""A worker process that can be harmed from within; else it is ``millwheel worker``.

The engine has no hooks for this: here its store is wrapped before it starts, in this process alone.
Beside what `control` says it can be born into a network of its own, or with a bug.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import functools
import gc
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millwheel import Context, Record
from millwheel.cli import reporting
from millwheel.cli.commands import worker_command
from millwheel.core.clock import SystemClock
from millwheel.runtime.engine import Engine
from millwheel.services.worker import PipelineWorker
from millwheel.store.postgres.lane import PostgresLane
from millwheel.store.postgres.statements import Statements
from millwheel.store.postgres.store import PostgresStore
from tests.campaign.control import Control
from tests.campaign.workload import Account, Accounts, Deposit
from tests.support.engine_dump import dump

NETWORK, CONTROL, PLANT = "CAMPAIGN_NETWORK", "CAMPAIGN_CONTROL", "CAMPAIGN_PLANT"
CLONE_NEWNET = 0x40000000
PR_SET_PDEATHSIG = 1
WIRE_SECONDS = 0.004
"""Within which a worker dies whose commit is on the wire: such a commit takes about as long."""
HOG_MEGABYTES = 8

DIES_BEFORE = {
    "open_logs": "in takeover, sequencer raised",
    "read_last_commits": "in takeover, before its logs are read",
    "drop_bucket": "in bucket drop, tables locked",
    "make_bucket": "new bucket, before its tables",
    "fold_states": "in fold, before the states",
    "fold_timers": "in fold, states before timers",
    "begin_chain": "in split or merge",
}
"""Statements, and the point just before each."""


class Clock(SystemClock):
    """The machine's, as somebody has set it."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def now(self) -> int:
        return super().now() + self._control.get("wall")

    def monotonic(self) -> float:
        return super().monotonic() - self._control.get("standing") / 1e6


class Fate:
    """Where this process is to die."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def reaches(self, point: str) -> bool:
        """Whether it is to be there."""
        return self._control.armed == point

    def meet(self, point: str) -> None:
        """Die here if that is what was said."""
        if self.reaches(point):
            die(point)


def die(point: str) -> None:
    """Say where, and die as by ``kill -9``."""
    os.write(2, json.dumps({"event": "dies", "point": point}).encode() + b"\n")
    os.kill(os.getpid(), signal.SIGKILL)


def wrap(fate: Fate) -> None:
    """Put the points around the store's methods."""
    commit, append, finish = PostgresLane.commit, PostgresLane._append, PostgresLane._finish
    drop, get = PostgresStore.drop_bucket, Statements.get

    async def commit_or_die(lane: PostgresLane, effects: Any) -> None:
        fate.meet("before commit")
        await commit(lane, effects)
        fate.meet("after commit")

    async def append_or_die(lane: PostgresLane, *args: Any) -> None:
        if not fate.reaches("commit on the wire"):
            await append(lane, *args)
            return
        sending = asyncio.ensure_future(append(lane, *args))
        await asyncio.sleep(random.uniform(0, WIRE_SECONDS))
        die("commit on the wire")
        await sending

    async def finish_or_die(lane: PostgresLane, connection: Any, effects: Any) -> None:
        fate.meet("between state and rows")
        if not fate.reaches("before COMMIT is known"):
            await finish(lane, connection, effects)
            return
        finishing = asyncio.ensure_future(finish(lane, connection, effects))
        while not lane._sent_commit and not finishing.done():  # noqa: ASYNC110 (it tells nobody)
            await asyncio.sleep(0)
        await asyncio.sleep(random.uniform(0, WIRE_SECONDS / 4))
        die("before COMMIT is known")

    async def drop_or_die(store: PostgresStore, *args: Any) -> bool:
        dropped = await drop(store, *args)
        if dropped:
            fate.meet("after bucket drop")
        return dropped

    def get_or_die(statements: Statements, name: str, **tables: str) -> str:
        if name in DIES_BEFORE:
            fate.meet(DIES_BEFORE[name])
        return get(statements, name, **tables)

    replacements: list[tuple[type, str, Callable[..., Any]]] = [
        (PostgresLane, "commit", commit_or_die),
        (PostgresLane, "_append", append_or_die),
        (PostgresLane, "_finish", finish_or_die),
        (PostgresStore, "drop_bucket", drop_or_die),
        (Statements, "get", get_or_die),
    ]
    for owner, name, function in replacements:
        setattr(owner, name, function)


def block_in(user_code: type[Accounts], control: Control) -> None:
    """Let user code block the event loop when it is told to."""
    process = user_code.process_record

    async def process_or_block(
        self: Accounts, record: Record[Deposit], ctx: Context[Account]
    ) -> None:
        if milliseconds := control.get("block"):
            control.set("block", 0)
            time.sleep(milliseconds / 1000)  # noqa: ASYNC251
        await process(self, record, ctx)

    setattr(user_code, "process_record", process_or_block)  # noqa: B010


async def take_memory(control: Control) -> None:
    """Take what it is told to, until there is none left."""
    taken: list[bytearray] = []
    while True:
        await asyncio.sleep(0.05)
        while len(taken) * HOG_MEGABYTES < control.get("hog"):
            taken.append(bytearray(os.urandom(1 << 20) * HOG_MEGABYTES))
            await asyncio.sleep(0)


class Harmed(PipelineWorker):
    """A worker beside which memory is taken."""

    control: Control

    async def run(self, stop: asyncio.Event) -> bool:
        hog = asyncio.create_task(take_memory(self.control))
        try:
            return await super().run(stop)
        finally:
            hog.cancel()


def main() -> None:
    """Be such a worker."""
    signal.signal(signal.SIGUSR1, tell)
    end_with_parent()
    setattr(reporting, "REPEAT_SECONDS", 0.0)  # noqa: B010 (which connections break is asked for)
    if network := os.environ.get(NETWORK):
        enter_network(Path(network))
    if bug := os.environ.get(PLANT):
        from tests.campaign.planted import plant

        plant(bug)
    if path := os.environ.get(CONTROL):
        control = Control(Path(path))
        wrap(Fate(control))
        block_in(Accounts, control)
        Harmed.control = control
        setattr(worker_command, "PipelineWorker", functools.partial(Harmed, clock=Clock(control)))  # noqa: B010
    from millwheel.cli.main import main as millwheel

    millwheel()


def tell(number: int, frame: Any) -> None:
    """Say what this worker has in its hands, and where it stands, on standard error."""
    for found in gc.get_objects():
        if isinstance(found, Engine):
            os.write(2, dump(found).encode() + b"\n")
    faulthandler.dump_traceback(all_threads=True)


def end_with_parent() -> None:
    """Die with the process that this one was forked from, however that ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def enter_network(path: Path) -> None:
    """Be on another machine from now on, as far as its network goes."""
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open() as namespace:
        if libc.setns(namespace.fileno(), CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))


if __name__ == "__main__":
    sys.argv[0] = "millwheel"
    main()
