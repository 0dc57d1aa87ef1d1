"""``millwheel run --workers N``: worker processes of one pipeline on one machine, and their end.

Each is a ``millwheel worker --until-done``, with a pipe to its standard input: when that is closed,
by us or by our death, the worker ends in order. A worker that is killed is started again; one that
ends with an error ends the others, as nothing but the error would come of it again.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal

import structlog

from millwheel.clock import Clock, SystemClock
from millwheel.errors import MillwheelError
from millwheel.runtime.process.service import Service
from millwheel.services.hosting import Progress
from millwheel.store.inspection import Totals, inspect

END_SECONDS = 30.0
"""How long a worker may take to end in order; then it is killed, which loses nothing."""

KILLED_OFTEN = 5
"""So many workers killed within a minute are no accident."""

MINUTE = 60.0

ERROR = "error: "
"""How the last words of a worker that fails begin (`millwheel.cli.reporting`)."""

LOOK_SECONDS = 1.0
"""Between two looks at what the workers have stored, at the least."""


class WorkerFailed(MillwheelError):
    """A worker process ended with an error, which it has told by itself."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Crew:
    """Some worker processes that share a pipeline.

    Args:
        target: ``MODULE:PIPELINE``, as it is found from the current directory.
        store: the address of the store, as in ``MILLWHEEL_STORE``.
        tell: gets each line that a worker logs, as the fields of an event or as plain text.
        options: further options of ``millwheel worker``.
    """

    def __init__(
        self,
        target: str,
        store: str,
        number: int,
        tell: Callable[[int, dict[str, Any] | str], None],
        clock: Clock | None = None,
        *,
        options: Sequence[str] = (),
    ) -> None:
        self._target = target
        self._options = options
        self._environment = {**os.environ, "MILLWHEEL_STORE": store}
        self._number = number
        self._tell = tell
        self._clock = clock or SystemClock()
        self._killed: list[float] = []
        self._errors: set[str] = set()
        """That they have told."""
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._ending = False

    async def run(self, stop: asyncio.Event) -> Literal["complete", "stopped"]:
        """Work until everything is processed, or `stop` is set.

        Raises:
            WorkerFailed: one of them could not go on; the others were stopped.
        """
        working = [asyncio.create_task(self._keep(place)) for place in range(1, self._number + 1)]
        stopping = asyncio.create_task(stop.wait())
        try:
            everybody = asyncio.gather(*working)
            await asyncio.wait((everybody, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not everybody.done():
                self._let_end()
            await everybody
        finally:
            stopping.cancel()
            self._let_end()
            await asyncio.gather(*working, return_exceptions=True)
        return "stopped" if stop.is_set() else "complete"

    async def _keep(self, place: int) -> None:
        """A worker, started again as often as it is killed."""
        while not self._ending:
            process = await self._start(place)
            code = await self._attend(place, process)
            if code == 0:
                return
            if code > 0:
                raise WorkerFailed(
                    f"worker {place} of {self._number} ended with exit code {code}, see above; the "
                    "others were stopped. Nothing that was committed is lost",
                    code,
                )
            if not self._ending:
                self._note_killed(place, -code)

    def _note_killed(self, place: int, number: int) -> None:
        """Somebody has killed a worker.

        Raises:
            WorkerFailed: it happens again and again.
        """
        name = signal.Signals(number).name
        now = self._clock.monotonic()
        self._killed = [at for at in self._killed if now - at < MINUTE] + [now]
        if len(self._killed) >= KILLED_OFTEN:
            raise WorkerFailed(
                f"{len(self._killed)} workers were killed within a minute, the last by {name}: is "
                "there too little memory? Nothing that was committed is lost",
                128 + number,
            )
        structlog.get_logger().warning("worker_killed", worker=place, signal=name)

    async def _start(self, place: int) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *self._command(),
            stdin=asyncio.subprocess.PIPE,
            stdout=None,
            stderr=asyncio.subprocess.PIPE,
            env=self._environment,
            start_new_session=True,  # Ctrl-C is for us: we tell them
        )
        self._processes[place] = process
        if self._ending:  # while it was made
            assert process.stdin is not None
            process.stdin.close()
        return process

    def _command(self) -> Sequence[str]:
        arguments = ("worker", self._target, "--until-done", "--stop-with-stdin")
        return (sys.executable, "-m", "millwheel.cli.main", *arguments, *self._options)

    async def _attend(self, place: int, process: asyncio.subprocess.Process) -> int:
        """Pass on what a worker says until it ends; gives its exit code.

        A record that fails goes to whoever has its key next, and may fail there before that one is
        told to end: the same error, with all that is said to it, is passed on once.
        """
        repeats = False
        try:
            assert process.stderr is not None
            while line := await process.stderr.readline():
                said = _event(line)
                if isinstance(said, str) and said.startswith(ERROR):
                    repeats = said in self._errors
                    self._errors.add(said)
                if not (repeats and isinstance(said, str)):
                    self._tell(place, said)
            return await process.wait()
        finally:
            del self._processes[place]
            if process.returncode is None:
                process.kill()

    def _let_end(self) -> None:
        """Ask all of them to end in order; who does not in time is killed."""
        if self._ending:
            return
        self._ending = True
        for process in self._processes.values():
            assert process.stdin is not None
            process.stdin.close()
        asyncio.get_running_loop().call_later(END_SECONDS, self._kill)

    def _kill(self) -> None:
        for process in self._processes.values():
            process.kill()


class CrewProgress(Service):
    """Tells how far the workers are together, by what they have stored.

    Args:
        before: what had been stored when they began.
    """

    def __init__(
        self,
        url: str,
        pipeline: str,
        before: Totals,
        show: Callable[[Progress], None],
        clock: Clock,
        period: float,
    ) -> None:
        super().__init__(clock, max(period, LOOK_SECONDS))
        self._url = url
        self._pipeline = pipeline
        self._before = before.counters["processed"]
        self._show = show
        self._began = self._last = clock.monotonic()
        self._last_processed = 0

    @property
    def seconds(self) -> float:
        """Since they began."""
        return self._clock.monotonic() - self._began

    async def run_once(self) -> None:
        found = await asyncio.to_thread(read_totals, self._url, self._pipeline)
        now = self._clock.monotonic()
        processed = found.counters["processed"] - self._before
        self._show(
            Progress(
                processed=processed,
                read=None,
                per_second=(processed - self._last_processed) / max(now - self._last, 1e-9),
                low_watermark=found.low_watermark,
                backlog=None,
                share=None,
                seconds=now - self._began,
            )
        )
        self._last, self._last_processed = now, processed


def read_totals(url: str, pipeline: str) -> Totals:
    """What the pipeline has counted by now."""
    with inspect(url) as inspection:
        return inspection.totals(pipeline)


def _event(line: bytes) -> dict[str, Any] | str:
    """A line of a worker's log, or something else that it said."""
    text = line.decode(errors="replace").rstrip("\n")
    try:
        found = json.loads(text)
    except ValueError:
        return text
    return found if isinstance(found, dict) else text
