"""``python -m tests.faults.chaos [--seconds 600] [--workers 4] [--seed 1]``: real processes, real
faults.

Worker processes share the pipeline of `tests.support.visits` on an embedded Postgres, each behind a
proxy that knows frames. Until the time is up one fault after the other happens to them, drawn by
the seed:

=============  ===========================================================================
kill           SIGKILL; a new worker comes some seconds later
freeze         SIGSTOP for longer than the lease, then SIGCONT: a zombie
leave          SIGTERM; a new worker comes later
join           one more worker
cut            all connections of a worker break
deaf           a worker's connections are taken, but nothing is read from them, for seconds
storm          frames to and from it are lost, doubled, delayed and overtake each other
shut           nobody can connect to it, for seconds
postgres       the server stops at once, without a checkpoint, and starts again
backends       sessions of the workers are terminated
=============  ===========================================================================

Then the workers finish, and everything must be exactly what a batch computes of the input, or, with
``--mode``, at least or at most that: the exit code says so. What happened, how many zombies were
fenced, and how long intervals of the dead stood still, is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import select
import signal
import socket
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import psycopg

from millwheel.errors import StoreError
from millwheel.store import embedded
from millwheel.testing.fake_network import Weather, fair
from tests.support import visits
from tests.support.fleet import Fleet, Member, Report, housed, unless_it_stands_still
from tests.support.proxy import Proxy

STORM = {"drop": 0.02, "duplicate": 0.02, "overtake": 0.02, "delay": 0.02}
STANDSTILL_SECONDS = 60.0
"""How long nothing may be committed when the faults are over and not everything is done."""

EVENTS = """
SELECT extract(epoch FROM at)::float8, from_worker::text FROM visits.placement_event
WHERE what = 'claim' AND from_worker IS DISTINCT FROM to_worker
"""


@dataclass
class ChaosReport(Report):
    """What happened."""

    faults: Counter[str] = field(default_factory=Counter)
    fenced: int = 0
    """Intervals that a worker found claimed by somebody else."""
    lease_over: int = 0
    """Times that a worker let go of everything by itself."""
    workers: int = 0
    takeovers: list[float] = field(default_factory=list)
    """Seconds from a kill until the dead worker's intervals were claimed."""

    def lines(self) -> list[str]:
        """For people."""
        found = sorted(self.takeovers)
        takeover = (
            f"{len(found)} takeovers, p50 {statistics.median(found):.1f} s, max {found[-1]:.1f} s"
            if found
            else "no takeovers"
        )
        return [
            f"faults: {sum(self.faults.values())}: "
            + ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items())),
            f"workers started: {self.workers}; exits {dict(self.exits)}",
            f"fenced: {self.fenced} intervals; leases given up: {self.lease_over}",
            f"{takeover} (lease {visits.LEASE_SECONDS:g} s)",
            *super().lines(),
        ]


class Behind(Member):
    """A worker process, and the proxy that others reach it through."""

    def __init__(self, fleet: Chaos) -> None:
        super().__init__(fleet)
        self.frozen = False
        self._heard = fleet.report
        self._listen_at = f"127.0.0.1:{free_port()}"
        self.proxy = Proxy(self._listen_at)
        self.expected = {0, -signal.SIGKILL, 128 + signal.SIGTERM}

    async def begin(self) -> None:
        """Begin to work."""
        advertised = await self.proxy.start()
        await self.start("--debug", "--listen", self._listen_at, "--advertise", advertised)

    def is_expected(self, code: int) -> bool:
        if code == StoreError.exit_code and not self.id:
            return True  # it could not reach the store at its start: somebody starts another
        return super().is_expected(code)

    def hear(self, event: dict[str, Any]) -> None:
        super().hear(event)
        what = event.get("event")
        if what == "fenced":
            self._heard.fenced += 1
        elif what == "lease_over":
            self._heard.lease_over += 1

    async def wait(self) -> int:
        code = await super().wait()
        await self.proxy.close()
        return code


class Chaos(Fleet[ChaosReport]):
    """Workers of one pipeline, and what happens to them."""

    def __init__(
        self, directory: Path, draw: Random, workers: int, pause: float, mode: str | None
    ) -> None:
        super().__init__(directory, ChaosReport(), pause, mode)
        self._draw = draw
        self._wanted = workers
        self._kills: dict[str, float] = {}
        self._beside: set[asyncio.Task[None]] = set()
        self.faults: dict[str, Callable[[], Awaitable[None]]] = {
            name: getattr(self, f"_{name}")
            for name in (
                "kill", "freeze", "leave", "join", "cut", "deaf", "storm", "shut", "postgres",
                "backends",
            )
        }  # fmt: skip

    @property
    def alive(self) -> list[Behind]:
        """Those that work, frozen or not."""
        return [m for m in self.members if isinstance(m, Behind) and m.alive]

    @property
    def finished(self) -> bool:
        """Whether a worker has found everything done."""
        return self.report.exits[0] > 0

    async def add(self) -> None:
        """One more worker."""
        self.report.workers += 1
        await Behind(self).begin()

    async def harm(self, seconds: float, rest: float) -> None:
        """One fault after the other for so long, with a rest between them."""
        until = time.monotonic() + seconds
        for name in self._order():
            await asyncio.sleep(self._draw.uniform(0.3, 1.7) * rest)
            if len(self.alive) < 2:
                await self.add()
            if time.monotonic() > until or self.finished:
                return
            self.report.faults[name] += 1
            await self.faults[name]()

    def _order(self) -> Any:
        """Every fault once, and then by chance."""
        names = list(self.faults)
        self._draw.shuffle(names)
        yield from names
        while True:
            yield self._draw.choice(names)

    async def finish(self) -> None:
        """Let the workers come to the end; who died is replaced."""
        for member in self.alive:
            member.proxy.weather = fair
            member.proxy.shut = False
            member.proxy.resume()
        while self._beside:
            await asyncio.gather(*self._beside)
        ending = asyncio.create_task(self._come_to_the_end())
        await unless_it_stands_still(ending, self.rows_done, STANDSTILL_SECONDS)

    async def _come_to_the_end(self) -> None:
        while not self.finished:
            if not self.alive:
                await self.add()
            await asyncio.wait(
                [asyncio.create_task(member.wait()) for member in self.alive],
                return_when=asyncio.FIRST_COMPLETED,
            )
        for member in self.members:
            await member.wait()

    async def end(self) -> None:
        """Whatever is left."""
        for task in self._beside:
            task.cancel()
        await super().end()
        for member in self.members:
            if isinstance(member, Behind):
                await member.proxy.close()

    def judge(self, answer: visits.Answer) -> None:
        """Compare everything with what it must be."""
        super().judge(answer)
        for at, victim in self.ask(EVENTS):
            killed = self._kills.get((victim or "")[:8])
            if killed is not None and at > killed:
                self.report.takeovers.append(at - killed)

    # -- faults -----------------------------------------------------------------------

    def _victim(self) -> Behind | None:
        free = [member for member in self.alive if not member.frozen and member.id]
        return self._draw.choice(free) if free else None

    def _later(self, work: Callable[[], Awaitable[None]], seconds: float) -> None:
        async def wait() -> None:
            await asyncio.sleep(seconds)
            await work()

        task = asyncio.create_task(wait())
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    async def _replace(self) -> None:
        if len(self.alive) < self._wanted and not self.finished:
            await self.add()

    async def _kill(self) -> None:
        victim = self._victim()
        if victim is not None:
            self._kills[victim.id] = time.time()
            victim.send(signal.SIGKILL)
            self._later(self._replace, self._draw.uniform(0, 3))

    async def _freeze(self) -> None:
        victim = self._victim()
        if victim is None:
            return
        victim.frozen = True
        victim.send(signal.SIGSTOP)

        async def wake() -> None:
            victim.send(signal.SIGCONT)
            victim.frozen = False

        self._later(wake, visits.LEASE_SECONDS * self._draw.uniform(0.5, 2.5))

    async def _leave(self) -> None:
        victim = self._victim()
        if victim is not None:
            victim.send(signal.SIGTERM)
            self._later(self._replace, self._draw.uniform(0, 3))

    async def _join(self) -> None:
        if len(self.alive) < self._wanted + 2:
            await self.add()

    async def _cut(self) -> None:
        victim = self._victim()
        if victim is not None:
            victim.proxy.cut()

    async def _deaf(self) -> None:
        victim = self._victim()
        if victim is not None:
            victim.proxy.stall()

            async def resume() -> None:
                victim.proxy.resume()

            self._later(resume, self._draw.uniform(1, 12))

    async def _storm(self) -> None:
        victim = self._victim()
        if victim is not None:
            victim.proxy.weather = Weather(Random(self._draw.random()), **STORM)

            async def calm() -> None:
                victim.proxy.weather = fair

            self._later(calm, self._draw.uniform(1, 8))

    async def _shut(self) -> None:
        victim = self._victim()
        if victim is not None:
            victim.proxy.shut = True
            victim.proxy.cut()

            async def open_() -> None:
                victim.proxy.shut = False

            self._later(open_, self._draw.uniform(1, 6))

    async def _postgres(self) -> None:
        pid = embedded.status(self.directory / "store").pid
        if pid is not None:
            os.kill(pid, signal.SIGQUIT)
            await asyncio.to_thread(wait_for_end, pid)
        await asyncio.to_thread(embedded.start, self.directory / "store")

    async def _backends(self) -> None:
        with contextlib.suppress(psycopg.Error), psycopg.connect(self.url) as connection:
            found = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' "
                "AND pid <> pg_backend_pid()"
            ).fetchall()
            for (pid,) in self._draw.sample(found, k=(len(found) + 1) // 2):
                connection.execute("SELECT pg_terminate_backend(%s)", [pid])


def wait_for_end(pid: int) -> None:
    """Until a process is gone that is nobody's child here."""
    process = os.pidfd_open(pid)
    try:
        select.select([process], [], [])
    finally:
        os.close(process)


def free_port() -> int:
    """A port of the loopback address that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def run(
    *,
    seconds: float,
    workers: int,
    seed: int,
    rows: int,
    rest: float,
    pause: float,
    mode: str | None = None,
) -> ChaosReport:
    """Work, harm, finish, judge."""
    draw = Random(seed)

    def chaos(directory: Path) -> Chaos:
        return Chaos(directory, draw, workers, pause, mode)

    async with housed(chaos) as made:
        answer = visits.write(made.directory, rows, seed=seed)
        await asyncio.gather(*(made.add() for _ in range(workers)))
        await made.harm(seconds, rest)
        try:
            await made.finish()
        except TimeoutError as error:
            made.report.errors.append(str(error))
        made.judge(answer)
    return made.report


def main() -> int:
    """The exit code is 0 if everything is as it must be."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="of faults")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rows", type=int, help="else 1000 for each second")
    parser.add_argument("--rest", type=float, default=2.0, help="seconds between two faults")
    parser.add_argument(
        "--pause", type=float, default=1.0, help="seconds that every tenth visit takes"
    )
    parser.add_argument("--mode", choices=list(visits.MODES), help="what is promised")
    options = parser.parse_args()
    rows = options.rows or int(1000 * options.seconds)
    report = asyncio.run(
        run(
            seconds=options.seconds,
            workers=options.workers,
            seed=options.seed,
            rows=rows,
            rest=options.rest,
            pause=options.pause,
            mode=options.mode,
        )
    )
    return report.tell()


if __name__ == "__main__":
    sys.exit(main())
