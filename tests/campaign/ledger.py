"""One run: workers work, a reader reads, faults happen, the workers finish, everything is
compared."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import psycopg

from millwheel.store.console.migrate import migrate
from tests.campaign import (
    faults_network,  # noqa: F401 (they are in the list)
    faults_placement,  # noqa: F401
    faults_store,  # noqa: F401
    stuck,
)
from tests.campaign.cgroup import memory_group
from tests.campaign.checks import Watcher, final
from tests.campaign.crew import Crew
from tests.campaign.faults import FAULTS, Outcome, Scene, until
from tests.campaign.plan import Run
from tests.campaign.pulse import Pulse
from tests.campaign.reader import Reader, judge, positions_of, read, wait_for
from tests.campaign.results import FaultCount, Result
from tests.campaign.sites import SITES, Refused, Site
from tests.campaign.workload import ENDLESS, LOOK_ROWS, NAME, PARTITIONS, Work, set_rows
from tests.support.fleet import make_directory
from tests.support.machines import Refused as NoMachines
from tests.support.machines import machines

START_SECONDS = 30.0
AFTERMATH_SECONDS = 12.0
"""For up to so long the intervals that a fault met are waited for, before its stall is told."""
NOTES = 5
"""Of faults without effect, in the result."""

MARGIN_ROWS = 4096
"""Read between the look at the positions and the word that there will be no more."""

ADDRESSES = ("10.98.0.1", "10.98.0.2")

Say = Callable[[str], None]


class Stuck(Exception):
    """Nothing moves."""


def missing(run: Run) -> set[str]:
    """What faults of a run need and it has not."""
    has = {run.site} | {
        name for name in ("frames", "wire", "machines", "cgroup") if getattr(run, name)
    }
    return {need for name in run.faults for need in FAULTS[name].needs} - has


class Ledger:
    """One run, from its first process to its result."""

    def __init__(self, run: Run, keep: Path, say: Say) -> None:
        assert not missing(run), f"{run.name}: {missing(run)}"
        self._run = run
        self._keep = keep
        self._say = say
        self._draw = Random(run.seed)
        self._counts: dict[str, FaultCount] = defaultdict(FaultCount)
        self._striking: set[asyncio.Task[None]] = set()
        self._measuring: set[asyncio.Task[None]] = set()
        self._result = Result(name=run.name, seed=run.seed, guarantee=run.guarantee)
        self._began = time.monotonic()

    async def carry_out(self) -> Result:
        """All of it; whatever happens, nothing is left behind."""
        directory = make_directory("millwheel-campaign-")
        try:
            with ExitStack() as until_end:
                await self._in_place(directory, until_end)
        except (Refused, NoMachines) as error:
            self._result.refused = str(error)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        result = self._result
        result.seconds = time.monotonic() - self._began
        result.faults = dict(self._counts)
        return result

    async def _in_place(self, directory: Path, until_end: ExitStack) -> None:
        run = self._run
        work = Work(
            str(directory),
            run.guarantee,
            run.tables,
            run.lease_seconds,
            run.bucket_seconds,
            run.unacked,
        )
        set_rows(work, ENDLESS)
        one, other, cable = (
            until_end.enter_context(machines(*ADDRESSES)) if run.machines else (None, None, None)
        )
        pair = (one, other) if one is not None and other is not None else ()
        group = until_end.enter_context(memory_group()) if run.cgroup else None
        site: Site = await asyncio.to_thread(SITES[run.site], directory)
        try:
            await asyncio.to_thread(migrate, site.url, NAME)
            crew = Crew(
                directory,
                site,
                work,
                frames=run.frames,
                wire=run.wire,
                machines=pair,
                plant=run.plant,
            )
            pulse = Pulse(site.url)
            reader = Reader(
                site.url, work, loses=run.site == "lagging", keep=self._keep / "first anomaly"
            )
            scene = Scene(crew, pulse, self._draw, run.workers, pair, cable, group)
            pulse.start()
            try:
                await self._watched(scene, reader)
            finally:
                left = self._striking | self._measuring
                for task in left:
                    task.cancel()
                await asyncio.gather(*left, return_exceptions=True)
                await asyncio.to_thread(pulse.end)
                await crew.end()
                self._result.exits = {str(code): n for code, n in crew.report.exits.items()}
                self._result.events = dict(crew.report.events)
                self._result.unknown_commits = crew.report.unknown
                self._result.errors += crew.report.errors
                if not self._result.good:
                    self._keep.mkdir(parents=True, exist_ok=True)
                    shutil.copy(crew.log, self._keep / "workers.log")
        finally:
            await asyncio.to_thread(site.remove)

    async def _watched(self, scene: Scene, reader: Reader) -> None:
        crew, pulse, result = scene.crew, scene.pulse, self._result
        try:
            await asyncio.gather(*(crew.add() for _ in range(scene.wanted)))
            await self._share(scene)
            reader.start()
            try:
                await self._harm(scene)
                rows = await self._end_of_rows(scene)
                await self._finish(scene)
                result.records = rows * PARTITIONS
            finally:
                await asyncio.to_thread(reader.end)
            await asyncio.to_thread(self._judge, scene, reader, rows)
        except (Stuck, TimeoutError, psycopg.Error) as error:
            result.errors.append(f"stuck: {type(error).__name__}: {error}")
            told = await stuck.diagnose(crew, self._keep)
            result.errors.append(f"diagnosis: {told}")
        result.commits = pulse.commits
        result.looks, result.looks_refused = reader.looks, reader.refused
        result.anomalies = dict(reader.anomalies)
        result.told = reader.told

    async def _share(self, scene: Scene) -> None:
        """Until everybody has something to do."""
        hands = scene.crew.alive
        if not await until(lambda: all(scene.owned(hand) for hand in hands), START_SECONDS):
            raise Stuck("not every worker got something to do")

    # -- faults -----------------------------------------------------------------------------

    async def _harm(self, scene: Scene) -> None:
        """One fault after the other, some at once; each once at the least, be it longer."""
        run, until_when = self._run, time.monotonic() + self._run.seconds
        order, struck = self._order(), 0
        while time.monotonic() < until_when or struck < len(run.faults):
            struck += 1
            await asyncio.sleep(self._draw.uniform(0.3, 1.7) * run.rest)
            while len(self._striking) >= run.at_once:
                await asyncio.wait(self._striking, return_when=asyncio.FIRST_COMPLETED)
            while len(scene.crew.alive) < 2:
                await scene.crew.add()
            self._check_pulse(scene)
            task = asyncio.create_task(self._strike(scene, next(order)))
            self._striking.add(task)
            task.add_done_callback(self._struck)
        while self._striking or self._measuring:
            await asyncio.wait(self._striking | self._measuring)

    def _struck(self, task: asyncio.Task[None]) -> None:
        self._striking.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._result.errors.append(f"a fault failed: {type(error).__name__}: {error}")

    def _order(self) -> Any:
        """Every fault once, then by chance."""
        names = list(self._run.faults)
        self._draw.shuffle(names)
        yield from names
        weights = [self._run.faults[name] for name in names]
        while True:
            yield self._draw.choices(names, weights)[0]

    async def _strike(self, scene: Scene, name: str) -> None:
        began = time.monotonic()
        outcome: Outcome = await FAULTS[name].strike(scene)
        if outcome.intervals is None:  # it met everybody: let them come to themselves first
            await self._measure(scene, name, outcome, began)
            return
        measuring = asyncio.create_task(self._measure(scene, name, outcome, began))
        self._measuring.add(measuring)
        measuring.add_done_callback(self._measuring.discard)

    async def _measure(self, scene: Scene, name: str, outcome: Outcome, began: float) -> None:
        """How long what it met stood still; others may strike meanwhile."""
        ended, met = time.monotonic(), outcome.intervals
        await until(
            lambda: (
                scene.pulse.last > ended if met is None else scene.pulse.commits_since(met, ended)
            ),
            AFTERMATH_SECONDS,
        )
        stall = scene.pulse.stall(met, began, ended)
        count = self._counts[name]
        count.struck += 1
        if outcome.effective:
            count.effective += outcome.times
            count.stalls.append(round(stall, 2))
        elif len(count.without_effect) < NOTES:
            count.without_effect.append(outcome.note)
        self._say(
            f"{name}{'' if outcome.effective else ' (without effect)'}"
            f"{': ' + outcome.note if outcome.note else ''}; stall {stall:.1f} s"
        )

    def _check_pulse(self, scene: Scene) -> None:
        silent = time.monotonic() - scene.pulse.last
        if silent > stuck.SECONDS:
            raise Stuck(f"nothing was committed for {silent:.0f} s")

    # -- the end ----------------------------------------------------------------------------

    async def _end_of_rows(self, scene: Scene) -> int:
        """Say how many rows there are; nobody has read so far yet: what may be read and not
        acknowledged is bounded, and who reads looks again each `LOOK_ROWS`."""
        work, url = scene.crew.work, scene.crew.site.url
        await asyncio.to_thread(wait_for, url, START_SECONDS)
        positions = await asyncio.to_thread(positions_of, url)
        rows = max(positions.values()) + work.unacked + LOOK_ROWS + MARGIN_ROWS
        set_rows(work, rows)
        return rows

    async def _finish(self, scene: Scene) -> None:
        """Until a worker finds everything done; who died is replaced."""
        crew = scene.crew
        while not crew.finished:
            self._check_pulse(scene)
            if len(crew.alive) < 2 and not crew.finished:
                await crew.add()
            await asyncio.sleep(0.1)
        ending = asyncio.gather(*(hand.wait() for hand in crew.members))
        try:
            await asyncio.wait_for(ending, stuck.SECONDS)
        except TimeoutError:
            raise Stuck("a worker does not end although all is done") from None

    def _judge(self, scene: Scene, reader: Reader, rows: int) -> None:
        """The last look, as the reader would, and by SQL alone."""
        crew = scene.crew
        wait_for(crew.site.url, START_SECONDS)
        with psycopg.connect(
            crew.site.url, autocommit=True, options=f"-c search_path={NAME}"
        ) as connection:
            last = read(connection, crew.work, pending=True)
        watcher = Watcher(crew.work)
        watcher.look(reader.last)
        reader.note(watcher.look(last))
        reader.note(final(last, rows, tables=crew.work.tables))
        self._result.differences, self._result.broken_chains = judge(crew.site.url, rows)
