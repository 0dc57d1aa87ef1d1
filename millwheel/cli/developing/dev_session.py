"""A session of ``millwheel dev``: runs one version of the code after the other.

::

                ┌── a file changes ── SIGTERM, it finishes its commits ──┐
                v                                                        │
    import ─> plan ─┬─ fits ───────────────────────────────> run ────────┤
       │            ├─ asks ── a person confirms ──────────> run         │
       │            ├─ asks ── no ──┐                                    │
       └─ an error ─┴─ refused ─────┴─> wait for a change ───────────────┘

Each version runs in a process of its own: modules that are imported twice in one process leave
parts of the former ones behind. Its state, its timers and its positions are in the store, so that
the next version continues with them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import msgspec

from millwheel.cli.developing.arrivals import Arrivals
from millwheel.cli.developing.changes import FileChanges
from millwheel.cli.developing.keyboard import Keyboard
from millwheel.cli.developing.reports import (
    DEPLOY,
    Checked,
    Delivered,
    Finished,
    Imported,
    PlannedDeploy,
    Report,
    VersionOptions,
    VersionRunning,
    decode,
)
from millwheel.runtime.process.tasks import end
from millwheel.store.address import StoreAddress

END_SECONDS = 30.0
"""Time for a version to finish its commits; after it the process is killed, which loses nothing."""

KILLED_OFTEN = 5
"""Times that a version is started again after it was killed: memory may be running out."""

LONGEST_REPORT = 1 << 26
"""Bytes; a row of a source has 8 MiB by default."""

MODULE = "millwheel.cli.developing.version_process"

WAITING = "waiting for a change"


class DevSession:
    """Starts a process for each version of the code, and shows its reports.

    Args:
        url: the store, for a look at its tables.
        address: the same store, for the processes.
        confirmed: deploy without a question.
        say: prints a line.
    """

    def __init__(
        self,
        options: VersionOptions,
        url: str,
        address: StoreAddress,
        say: Callable[[str], None],
        *,
        confirmed: bool,
    ) -> None:
        self._options = options
        self._store = address.redacted()
        self._confirmed = confirmed
        self._say = say
        self._folder = Path.cwd()
        self._environment = {
            **os.environ,
            "MILLWHEEL_STORE": address.url or str(address.directory),
        }
        self._changes = FileChanges(self._folder)
        self._arrivals = Arrivals(url, say)
        self._is_checked = self._is_running = False
        self._looking: asyncio.Task[None] | None = None
        self._pipeline = ""
        self._killed = 0
        """Times that a version was killed since the last change."""

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set."""
        stopping = asyncio.create_task(stop.wait())
        with Keyboard() as keyboard:
            self._looking = asyncio.create_task(self._arrivals.run())
            try:
                while not stop.is_set():
                    await self._run_version(stopping, keyboard)
            finally:
                await end((self._looking, stopping))
                self._changes.close()

    async def _run_version(self, stopping: asyncio.Task[bool], keyboard: Keyboard) -> None:
        """Run the code as it is now, until it changes or the session stops."""
        self._changes.forget()
        self._is_checked = self._is_running = False
        process, reports = await self._start()
        following = asyncio.create_task(self._follow(process, reports, keyboard))
        changing = asyncio.create_task(self._changes.wait())
        try:
            await self._first_of(following, changing, stopping)
            if not (changing.done() or stopping.done()):
                following.result()
                await self._wait(process, changing, stopping, keyboard)
            if changing.done():
                self._killed = 0
                _remove_compiled(changing.result())
                self._say(f"changed: {', '.join(map(self._shown, changing.result()))}")
        finally:
            await _stop(process)
            await asyncio.wait((following,), timeout=END_SECONDS)
            await end((following, changing))
            await self._arrivals.look()

    async def _start(self) -> tuple[asyncio.subprocess.Process, asyncio.StreamReader]:
        reading, writing = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", MODULE, str(writing),
                msgspec.json.encode(self._options).decode(),
                stdin=asyncio.subprocess.PIPE,
                env=self._environment,
                pass_fds=(writing,),
                start_new_session=True,  # Ctrl-C reaches only the session, which stops it
            )  # fmt: skip
        finally:
            os.close(writing)
        reports = asyncio.StreamReader(limit=LONGEST_REPORT)
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reports), os.fdopen(reading, "rb")
        )
        return process, reports

    async def _follow(
        self,
        process: asyncio.subprocess.Process,
        reports: asyncio.StreamReader,
        keyboard: Keyboard,
    ) -> None:
        """Show the reports of a version, until its process has ended."""
        while line := await reports.readline():
            await self._handle(decode(line), process, keyboard)
        await process.wait()
        if not self._is_checked:
            self._changes.watch_all()

    async def _handle(
        self, report: Report, process: asyncio.subprocess.Process, keyboard: Keyboard
    ) -> None:
        match report:
            case Imported(code):
                before = self._changes.watched
                self._changes.watch(code=map(Path, code))
                if self._is_running:
                    more = [path for path in self._changes.watched if path not in before]
                    self._say(f"watching {', '.join(map(self._shown, more))}, too")
            case Checked():
                self._is_checked = True
                self._pipeline = report.pipeline
                self._changes.watch(inputs=map(Path, report.inputs))
                await self._arrivals.begin(report)
            case PlannedDeploy(lines, verdict):
                self._say_all(lines)
                if verdict == "asks":
                    await self._ask(process, keyboard)
                elif verdict == "refused":
                    self._say(
                        "this code cannot be deployed. To begin again without all that is stored: "
                        f"millwheel drop {self._pipeline} --store {self._store}"
                    )
            case VersionRunning(addresses):
                self._is_running = True
                shown = ", ".join(map(self._shown, self._changes.watched))
                self._say_all([f"running; watching {shown}", *addresses])
            case Delivered():
                self._arrivals.delivered(report)
            case Finished(lines):
                await self._arrivals.look()
                self._say_all(lines)

    async def _ask(self, process: asyncio.subprocess.Process, keyboard: Keyboard) -> None:
        """Let the version deploy, or end it."""
        assert process.stdin is not None
        answer = "y" if self._confirmed else ""
        if not self._confirmed and keyboard.is_there:
            keyboard.forget()
            self._say("Deploy this code? [y/N]")
            answer = await _answer(process, keyboard)
        elif not self._confirmed:
            self._say(
                "not deployed: this changes stored data. Confirm with --yes, or on a terminal"
            )
        if answer.lower() in ("y", "yes"):
            process.stdin.write(DEPLOY)
        else:
            process.stdin.close()

    async def _wait(
        self,
        process: asyncio.subprocess.Process,
        changing: asyncio.Task[list[Path]],
        stopping: asyncio.Task[bool],
        keyboard: Keyboard,
    ) -> None:
        """Wait for a change, or for a key; a process that was killed is started again at once."""
        if (number := -(process.returncode or 0)) > 0:
            self._killed += 1
            self._say(f"the process was killed by {signal.Signals(number).name}")
            if self._is_running and self._killed < KILLED_OFTEN:
                self._say("starting again")
                return
        self._say(f"{WAITING}{', or for Enter' if keyboard.is_there else ''}; Ctrl-C ends")
        keyboard.forget()
        typing = asyncio.create_task(keyboard.line())
        try:
            await self._first_of(changing, stopping, typing)
        finally:
            await end((typing,))

    async def _first_of(self, *tasks: asyncio.Task[Any]) -> None:
        """Wait until one of the tasks has ended; an error of the looks at the rows is raised."""
        assert self._looking is not None
        await asyncio.wait((*tasks, self._looking), return_when=asyncio.FIRST_COMPLETED)
        if self._looking.done():
            self._looking.result()

    def _say_all(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._say(line)

    def _shown(self, path: Path) -> str:
        return str(path.relative_to(self._folder) if path.is_relative_to(self._folder) else path)


def _remove_compiled(paths: Iterable[Path]) -> None:
    """Python takes a module for the one that it has compiled if time and length are the same, and
    that time has whole seconds."""
    for path in paths:
        if path.suffix == ".py":
            Path(cache_from_source(str(path))).unlink(missing_ok=True)


async def _answer(process: asyncio.subprocess.Process, keyboard: Keyboard) -> str:
    """A line, or nothing if the version has ended before, as its code has changed again."""
    typing, ending = asyncio.create_task(keyboard.line()), asyncio.create_task(process.wait())
    try:
        await asyncio.wait((typing, ending), return_when=asyncio.FIRST_COMPLETED)
        return typing.result() if typing.done() else ""
    finally:
        await end((typing, ending))


async def _stop(process: asyncio.subprocess.Process) -> None:
    """End a version in order, or kill it if it does not."""
    if process.stdin is not None:
        process.stdin.close()
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), END_SECONDS)
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
