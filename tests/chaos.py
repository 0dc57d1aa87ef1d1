"""``python -m tests.chaos [--seconds 600] [--workers 4] [--seed 1]``: real processes, real faults.

Worker processes share the pipeline of `tests.visits` on an embedded Postgres, each behind a proxy
that knows frames. Until the time is up one fault after the other happens to them, drawn by the seed:

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

Then the workers finish, and everything must be exactly what a batch computes of the input: the
exit code says so. What happened, how many zombies were fenced, and how long intervals of the
dead stood still, is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import select
import shutil
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import psycopg

from millwheel.errors import StoreError
from millwheel.store import embedded
from millwheel.store.migrate import migrate
from millwheel.testing.ether import Weather, fair
from tests import visits
from tests.proxy import Proxy

ROOT = Path(__file__).resolve().parent.parent
NAME = "visits"
STORM = {"drop": 0.02, "duplicate": 0.02, "overtake": 0.02, "delay": 0.02}
STANDSTILL_SECONDS = 60.0
"""How long nothing may be committed when the faults are over and not everything is done."""

EVENTS = """
SELECT extract(epoch FROM at)::float8, from_worker::text FROM visits.placement_event
WHERE what = 'claim' AND from_worker IS DISTINCT FROM to_worker
"""
ROWS = "SELECT (SELECT count(*) FROM visits.step) + (SELECT count(*) FROM visits.reminder)"
CHAINS = """
SELECT count(*) FROM (
    SELECT sequencer, n, lag(sequencer) OVER chain AS before, lag(n) OVER chain AS n_before
    FROM visits.commit_record WINDOW chain AS (PARTITION BY interval_id ORDER BY n)
) AS link
WHERE before > sequencer OR (n_before + 1 <> n AND n_before > 0)
"""
"""The first link of a part stands in the newest bucket: those between may be dropped before it."""


@dataclass
class Report:
    """What happened."""

    faults: Counter[str] = field(default_factory=Counter)
    fenced: int = 0
    """Intervals that a worker found claimed by somebody else."""
    lease_over: int = 0
    """Times that a worker let go of everything by itself."""
    workers: int = 0
    takeovers: list[float] = field(default_factory=list)
    """Seconds from a kill until the dead worker's intervals were claimed."""
    exits: Counter[int] = field(default_factory=Counter)
    broken_chains: int = -1
    """Commits that do not follow the one before; -1: nobody has looked."""
    differences: list[str] = field(default_factory=lambda: ["nobody has looked"])
    errors: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Nothing lost, nothing doubled, nothing by a zombie, and no worker ended by itself."""
        return not self.differences and self.broken_chains == 0 and not self.errors

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
            f"chains of commits broken: {self.broken_chains}",
            *self.errors,
            *(self.differences or ["equal to the batch answer"]),
        ]


class Member:
    """A worker process, and the proxy that others reach it through."""

    def __init__(self, number: int, report: Report, log: Path) -> None:
        self.number = number
        self.id = ""
        """As it says itself, its first part."""
        self.frozen = False
        self.done = False
        self._report = report
        self._log = log
        port = free_port()
        self.proxy = Proxy(f"127.0.0.1:{port}")
        self._listen = f"127.0.0.1:{port}"
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self, environment: dict[str, str]) -> None:
        """Begin to work."""
        advertised = await self.proxy.start()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "millwheel.cli.main", "worker", "tests.visits:pipeline",
            "--until-done", "--debug", "--listen", self._listen, "--advertise", advertised,
            cwd=ROOT, env=environment, stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE, limit=1 << 24,
        )  # fmt: skip
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        with self._log.open("ab") as log:
            while line := await self._process.stderr.readline():
                log.write(b"%d " % self.number + line)
                log.flush()
                with contextlib.suppress(ValueError):
                    self._note(json.loads(line))
        code = await self._process.wait()
        self.done = True
        self._report.exits[code] += 1
        expected = {0, -signal.SIGKILL, 128 + signal.SIGTERM}
        if not self.id:  # it could not reach the store at its start: somebody starts another
            expected.add(StoreError.exit_code)
        if code not in expected:
            self._report.errors.append(f"worker {self.number} ended with exit code {code}")

    def _note(self, event: Any) -> None:
        what = event.get("event") if isinstance(event, dict) else None
        if what == "started":
            self.id = event["worker"]
        elif what == "fenced":
            self._report.fenced += 1
        elif what == "lease_over":
            self._report.lease_over += 1

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it is there."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(number)

    async def wait(self) -> None:
        """Until it has ended and all it said was heard."""
        assert self._reading is not None
        await self._reading
        await self.proxy.close()


class Chaos:
    """Workers of one pipeline, and what happens to them."""

    def __init__(self, directory: Path, draw: Random, workers: int, pause: float) -> None:
        self.report = Report()
        self._directory = directory
        self._draw = draw
        self._wanted = workers
        self._members: list[Member] = []
        self._kills: dict[str, float] = {}
        self._beside: set[asyncio.Task[None]] = set()
        self._server = embedded.start(directory / "store")
        migrate(self._server.url, NAME)
        self._environment = {
            **os.environ,
            "MILLWHEEL_STORE": self._server.url,
            "VISITS": str(directory),
            "VISITS_NAME": NAME,
            "VISITS_PAUSE": str(pause),
        }
        self.faults: dict[str, Callable[[], Awaitable[None]]] = {
            name: getattr(self, f"_{name}")
            for name in (
                "kill", "freeze", "leave", "join", "cut", "deaf", "storm", "shut", "postgres",
                "backends",
            )
        }  # fmt: skip

    @property
    def url(self) -> str:
        """Of the store."""
        return self._server.url

    @property
    def alive(self) -> list[Member]:
        """Those that work, frozen or not."""
        return [member for member in self._members if not member.done]

    @property
    def finished(self) -> bool:
        """Whether a worker has found everything done."""
        return self.report.exits[0] > 0

    async def add(self) -> None:
        """One more worker."""
        self.report.workers += 1
        member = Member(self.report.workers, self.report, self._directory / "workers.log")
        self._members.append(member)
        await member.start(self._environment)

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
        rows = -1
        while not ending.done():
            done = self._rows_done()
            if done == rows:
                ending.cancel()
                raise TimeoutError
            rows = done
            await asyncio.wait([ending], timeout=STANDSTILL_SECONDS)
        await ending

    async def _come_to_the_end(self) -> None:
        while not self.finished:
            if not self.alive:
                await self.add()
            await asyncio.wait(
                [asyncio.create_task(member.wait()) for member in self.alive],
                return_when=asyncio.FIRST_COMPLETED,
            )
        for member in self._members:
            await member.wait()

    def _rows_done(self) -> int:
        """How much is in the tables."""
        with psycopg.connect(self.url) as connection:
            ((rows,),) = connection.execute(ROWS).fetchall()
        return int(rows)

    async def end(self) -> None:
        """Whatever is left."""
        for task in self._beside:
            task.cancel()
        for member in self._members:
            member.signal(signal.SIGCONT)
            member.signal(signal.SIGKILL)
            await member.wait()

    def judge(self, answer: visits.Answer) -> None:
        """Compare everything with what it must be."""
        with psycopg.connect(self.url) as connection:
            rows = connection.execute(CHAINS).fetchall()
            self.report.broken_chains = rows[0][0]
            for at, victim in connection.execute(EVENTS).fetchall():
                killed = self._kills.get((victim or "")[:8])
                if killed is not None and at > killed:
                    self.report.takeovers.append(at - killed)
        self.report.differences = visits.differences(visits.read(self.url, NAME), answer)

    # -- faults -----------------------------------------------------------------------

    def _victim(self) -> Member | None:
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
            victim.signal(signal.SIGKILL)
            self._later(self._replace, self._draw.uniform(0, 3))

    async def _freeze(self) -> None:
        victim = self._victim()
        if victim is None:
            return
        victim.frozen = True
        victim.signal(signal.SIGSTOP)

        async def wake() -> None:
            victim.signal(signal.SIGCONT)
            victim.frozen = False

        self._later(wake, visits.LEASE_SECONDS * self._draw.uniform(0.5, 2.5))

    async def _leave(self) -> None:
        victim = self._victim()
        if victim is not None:
            victim.signal(signal.SIGTERM)
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
        pid = embedded.status(self._directory / "store").pid
        if pid is not None:
            os.kill(pid, signal.SIGQUIT)
            await asyncio.to_thread(wait_for_end, pid)
        await asyncio.to_thread(embedded.start, self._directory / "store")

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


def make_directory() -> Path:
    """One that an unprivileged server can reach."""
    directory = Path(tempfile.mkdtemp(prefix="millwheel-chaos-"))
    directory.chmod(0o755)
    return directory


@asynccontextmanager
async def chaos(draw: Random, workers: int, pause: float) -> AsyncIterator[tuple[Chaos, Path]]:
    """Workers' place on a store of their own; everything is gone in the end."""
    directory = make_directory()
    try:
        made = Chaos(directory, draw, workers, pause)
        try:
            yield made, directory
        finally:
            await made.end()
    finally:
        await asyncio.to_thread(embedded.remove, directory / "store")
        if made.report.good:
            shutil.rmtree(directory, ignore_errors=True)


async def run(
    *, seconds: float, workers: int, seed: int, rows: int, rest: float, pause: float
) -> Report:
    """Work, harm, finish, judge."""
    draw = Random(seed)
    async with chaos(draw, workers, pause) as (made, directory):
        answer = visits.write(directory, rows, seed=seed)
        await asyncio.gather(*(made.add() for _ in range(workers)))
        await made.harm(seconds, rest)
        try:
            await made.finish()
        except TimeoutError:
            made.report.errors.append(
                f"nothing was done for {STANDSTILL_SECONDS:g} s, and more was to do"
            )
        made.judge(answer)
        if not made.report.good:
            made.report.errors.append(f"logs: {directory / 'workers.log'}")
        return made.report


def main() -> int:
    """The exit code is 0 if everything is as it must be."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="of faults")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rows", type=int, help="else 1000 for each second")
    parser.add_argument("--rest", type=float, default=2.0, help="seconds between two faults")
    parser.add_argument(
        "--pause", type=float, default=1.0, help="seconds that every tenth visit takes"
    )
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
        )
    )
    for line in report.lines():
        print(line, flush=True)
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
