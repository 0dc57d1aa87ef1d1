"""``millwheel run --workers N``: start and supervise worker processes of one pipeline.

Each process is a ``millwheel worker --until-done`` with a pipe to its standard input; it shuts down
when the pipe closes, also when this process dies. A worker that is killed is restarted. One that
ends with an error stops the others, since a restart would meet the same error.
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

from millwheel.core.clock import Clock, SystemClock
from millwheel.errors import MillwheelError
from millwheel.runtime.process.service import Service
from millwheel.services.hosting import RunProgress, lag_of
from millwheel.store.console.inspection import Totals, inspect

END_SECONDS = 30.0
"""Time limit for a worker's shutdown; after it the worker is killed, which loses nothing."""

KILLED_OFTEN = 5
"""Workers killed within a minute at which the crew gives up."""

MINUTE = 60.0

ERROR = "error: "
"""Prefix of the message of a failing worker (`millwheel.cli.reporting`)."""

POLL_SECONDS = 1.0
"""Shortest time between two reads of the stored totals."""


class WorkerFailed(MillwheelError):
    """A worker process ended with an error, which it has already printed."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Crew:
    """Runs worker processes that share a pipeline.

    Args:
        target: ``MODULE:PIPELINE``, importable from the current directory.
        relay: called for each line that a worker logs, with the worker's number (from 1) and the
            fields of the event or the plain text.
        options: further options of ``millwheel worker``.
    """

    def __init__(
        self,
        target: str,
        store: str,
        number: int,
        relay: Callable[[int, dict[str, Any] | str], None],
        clock: Clock | None = None,
        *,
        options: Sequence[str] = (),
    ) -> None:
        self._target = target
        self._options = options
        self._environment = {**os.environ, "MILLWHEEL_STORE": store}
        self._number = number
        self._relay = relay
        self._clock = clock or SystemClock()
        self._killed: list[float] = []
        self._errors: set[str] = set()
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._ending = False

    async def run(self, stop: asyncio.Event) -> Literal["complete", "stopped"]:
        """Run until everything is processed or `stop` is set; `WorkerFailed` after a failure
        stopped all."""
        working = [
            asyncio.create_task(self._supervise(place)) for place in range(1, self._number + 1)
        ]
        stopping = asyncio.create_task(stop.wait())
        try:
            all_workers = asyncio.gather(*working)
            await asyncio.wait((all_workers, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not all_workers.done():
                self._shut_down()
            await all_workers
        finally:
            stopping.cancel()
            self._shut_down()
            await asyncio.gather(*working, return_exceptions=True)
        return "stopped" if stop.is_set() else "complete"

    async def _supervise(self, place: int) -> None:
        while not self._ending:
            process = await self._start(place)
            code = await self._relay_log(place, process)
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
        """`WorkerFailed` if this was the `KILLED_OFTEN`-th within a minute."""
        name = signal.Signals(number).name
        now = self._clock.monotonic()
        self._killed = [at for at in self._killed if now - at < MINUTE] + [now]
        if len(self._killed) >= KILLED_OFTEN:
            raise WorkerFailed(
                f"{len(self._killed)} workers were killed within a minute, the last by {name}: is "
                "memory running out? Nothing that was committed is lost",
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
            start_new_session=True,  # Ctrl-C reaches only this process, which stops the workers
        )
        self._processes[place] = process
        if self._ending:  # since before the process was created
            assert process.stdin is not None
            process.stdin.close()
        return process

    def _command(self) -> Sequence[str]:
        arguments = ("worker", self._target, "--until-done", "--stop-with-stdin")
        return (sys.executable, "-m", "millwheel.cli.main", *arguments, *self._options)

    async def _relay_log(self, place: int, process: asyncio.subprocess.Process) -> int:
        """Relay a worker's log until it ends; return its exit code.

        A failing record moves to the next owner of its key and may fail there too, so the same
        error message is relayed once.
        """
        repeats = False
        try:
            assert process.stderr is not None
            while line := await process.stderr.readline():
                parsed = _parse(line)
                if isinstance(parsed, str) and parsed.startswith(ERROR):
                    repeats = parsed in self._errors
                    self._errors.add(parsed)
                if not (repeats and isinstance(parsed, str)):
                    self._relay(place, parsed)
            return await process.wait()
        finally:
            del self._processes[place]
            if process.returncode is None:
                process.kill()

    def _shut_down(self) -> None:
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
    """Reports the progress of all workers together, from the stored totals; `before` are those at
    the start."""

    def __init__(
        self,
        url: str,
        pipeline: str,
        before: Totals,
        show: Callable[[RunProgress], None],
        clock: Clock,
        period: float,
    ) -> None:
        super().__init__(clock, max(period, POLL_SECONDS))
        self._url = url
        self._pipeline = pipeline
        self._before = before.counters["processed"]
        self._show = show
        self._began = self._last = clock.monotonic()
        self._last_processed = 0

    @property
    def seconds(self) -> float:
        return self._clock.monotonic() - self._began

    async def run_once(self) -> None:
        found = await asyncio.to_thread(read_totals, self._url, self._pipeline)
        now = self._clock.monotonic()
        processed = found.counters["processed"] - self._before
        self._show(
            RunProgress(
                processed=processed,
                read=None,
                per_second=(processed - self._last_processed) / max(now - self._last, 1e-9),
                low_watermark=found.low_watermark,
                backlog=found.backlog,
                share=found.share,
                seconds=now - self._began,
                workers=found.workers,
                lag_seconds=lag_of(found.low_watermark, self._clock),
            )
        )
        self._last, self._last_processed = now, processed


def read_totals(url: str, pipeline: str) -> Totals:
    with inspect(url) as inspection:
        return inspection.totals(pipeline)


def _parse(line: bytes) -> dict[str, Any] | str:
    """A line that is no JSON object stays text."""
    text = line.decode(errors="replace").rstrip("\n")
    try:
        found = json.loads(text)
    except ValueError:
        return text
    return found if isinstance(found, dict) else text
