"""Commands as processes of their own that start at once: forked from one that has imported all of
it.

Python and the engine take 0.5 s of CPU to start, and tests of the command line start some hundred
commands of which a second start says nothing new. So one process, the *parent*, imports what
commands use, runs nothing, and forks:

::

    test ──request, with the ends of pipes──> parent ──fork──> command: main(), as a start would
         <────────────── pid, then how it ended ──┘

A command has its own pid, environment, directory, pipes and signals, and ends as every Python does.
What it does not do is start. The parent ends with who made it.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Protocol

IMPORTED = (
    "millwheel.cli.main", "millwheel.cli.commands.dead_letter_commands",
    "millwheel.cli.commands.deploy_commands", "millwheel.services.planning",
    "millwheel.services.state_migration",
    "millwheel.cli.commands.graph_command", "millwheel.cli.commands.interval_commands",
    "millwheel.cli.commands.key_commands", "millwheel.cli.commands.operator_commands",
    "millwheel.cli.commands.run_command", "millwheel.cli.commands.sql_command",
    "millwheel.cli.commands.status_command", "millwheel.cli.commands.store_commands",
    "millwheel.cli.commands.worker_command", "millwheel.computations", "millwheel.files",
    "millwheel.services.http", "millwheel.services.registering", "millwheel.services.worker",
    "millwheel.services.live_queries", "millwheel.sql.adding",
    "millwheel.store.embedded", "millwheel.store.console.migrate", "millwheel.store.postgres.store",
    "millwheel.store.postgres.schema", "millwheel.store.console.views",
    "alembic.command", "alembic.config", "alembic.context",
    "sqlalchemy.dialects.postgresql.psycopg",
)  # fmt: skip
IMPORTED_IF_THERE = ("typer._adapters", "uvloop")
"""typer's own conversion of parameters loads pydantic where that is installed: half of the CPU of a
short command."""
ROOT = Path(__file__).resolve().parents[2]
REQUEST_BYTES = 1 << 18
"""The words of a command and its environment."""

_number = struct.Struct("<i")


class Process(Protocol):
    """What tests use of a `subprocess.Popen` with pipes of text."""

    pid: int
    returncode: Any

    @property
    def stdout(self) -> IO[str] | None: ...
    @property
    def stderr(self) -> IO[str] | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def kill(self) -> None: ...
    def communicate(self) -> tuple[str, str]: ...


class ForkedProcess:
    """A process whose parent is another one."""

    def __init__(self, ending: socket.socket) -> None:
        self.pid: int = _number.unpack(_exactly(ending, _number.size))[0]
        self.returncode: int | None = None
        self._ending = ending
        self._lock = threading.Lock()

    async def ended(self) -> int:
        """`wait` for an event loop; not beside it."""
        if self.returncode is None:
            self._ending.setblocking(False)
            data = await asyncio.get_running_loop().sock_recv(self._ending, _number.size)
            if len(data) < _number.size:
                raise RuntimeError("the process that commands are forked from has ended")
            self.returncode = _number.unpack(data)[0]
            self._ending.close()
        return self.returncode

    def poll(self) -> int | None:
        """How it ended, if it has."""
        with contextlib.suppress(TimeoutError, BlockingIOError):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; gives its exit code, below zero that of the signal that killed it."""
        with self._lock:
            if self.returncode is None:
                self._ending.settimeout(timeout)
                self.returncode = _number.unpack(_exactly(self._ending, _number.size))[0]
                self._ending.close()
            return self.returncode

    def send_signal(self, sig: int) -> None:
        """Unless it is known to have ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forked(ForkedProcess):
    """A `Process` whose parent is another one, with pipes."""

    def __init__(self, ending: socket.socket, stdout: int, stderr: int) -> None:
        super().__init__(ending)
        self.stdout: IO[str] = os.fdopen(stdout, encoding="utf-8")
        self.stderr: IO[str] = os.fdopen(stderr, encoding="utf-8")

    def communicate(self) -> tuple[str, str]:
        """Wait for its end; what is left to be read of both pipes."""
        said: list[str] = []
        reading = threading.Thread(target=lambda: said.append(self.stdout.read()))
        reading.start()
        told = self.stderr.read()
        reading.join()
        self.wait()
        self.stdout.close()
        self.stderr.close()
        return said[0], told


class Parent:
    """The process that commands are forked from.

    Args:
        entry: ``module:function`` that a command is.
        imported: what to import beside what every command uses.
    """

    def __init__(
        self, entry: str = "millwheel.cli.main:main", imported: Sequence[str] = ()
    ) -> None:
        self._requests, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        with far:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(far.fileno()), entry, *imported],
                cwd="/", env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                pass_fds=[far.fileno()],
            )  # fmt: skip
        atexit.register(self.close)

    def start(self, arguments: list[str], directory: Path, environment: dict[str, str]) -> Forked:
        """Begin a command ``millwheel`` with these arguments."""
        out, err = os.pipe(), os.pipe()
        ending = self._request((out[1], err[1]), arguments, directory, environment)
        os.close(out[1])
        os.close(err[1])
        return Forked(ending, out[0], err[0])

    def start_on_terminal(
        self, terminal: int, arguments: list[str], directory: Path, environment: dict[str, str]
    ) -> ForkedProcess:
        """Begin a command in a session of its own, with a terminal as standard input and output."""
        ending = self._request((terminal, terminal, terminal), arguments, directory, environment)
        return ForkedProcess(ending)

    def _request(
        self,
        files: tuple[int, ...],
        arguments: list[str],
        directory: Path,
        environment: dict[str, str],
    ) -> socket.socket:
        """Ask for a command; gives the socket that tells its pid and its end.

        Args:
            files: standard output and error, and perhaps standard input.
        """
        ending, far = socket.socketpair()
        request = json.dumps([["millwheel", *arguments], str(directory), environment]).encode()
        assert len(request) < REQUEST_BYTES
        with far:
            socket.send_fds(self._requests, [request], [far.fileno(), *files])
        return ending

    def close(self) -> None:
        """End it; commands that still run go on."""
        self._requests.close()
        self._process.wait()


class AsyncForked:
    """A forked command in the way of `asyncio.subprocess.Process`."""

    def __init__(self, forked: Forked) -> None:
        self._forked = forked
        self.pid = forked.pid
        self.stderr = asyncio.StreamReader(1 << 24)
        self._stdout = asyncio.StreamReader(1 << 24)
        self._waiting: asyncio.Task[int] | None = None

    @classmethod
    async def start(
        cls, parent: Parent, arguments: list[str], environment: dict[str, str]
    ) -> AsyncForked:
        """Begin a command in the project's directory."""
        made = cls(parent.start(arguments, ROOT, environment))
        loop = asyncio.get_running_loop()
        pipes = ((made.stderr, made._forked.stderr), (made._stdout, made._forked.stdout))
        for reader, pipe in pipes:
            protocol = functools.partial(asyncio.StreamReaderProtocol, reader)
            await loop.connect_read_pipe(protocol, pipe)
        return made

    @property
    def returncode(self) -> int | None:
        """How it ended, if that is known."""
        return self._forked.returncode

    def send_signal(self, number: int) -> None:
        """Unless it is known to have ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def wait(self) -> int:
        """Until its end."""
        if self._waiting is None:
            self._waiting = asyncio.create_task(self._forked.ended())
        return await asyncio.shield(self._waiting)


@functools.cache
def parent() -> Parent:
    """That of this process."""
    return Parent()


def _exactly(source: socket.socket, number: int) -> bytes:
    data = source.recv(number, socket.MSG_WAITALL)
    if len(data) < number:
        raise RuntimeError("the process that commands are forked from has ended")
    return data


# -- in the parent ------------------------------------------------------------------------------


def serve(requests: socket.socket) -> None:
    """Fork a command for each request, and tell how it ended. Returns in the command only."""
    endings: dict[int, socket.socket] = {}
    woken, waking = socket.socketpair()
    for end in (woken, waking):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waking.fileno())
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is woken:
                    woken.recv(1 << 12)
                    _bury(endings)
                    continue
                request, ends, _, _ = socket.recv_fds(requests, REQUEST_BYTES, 4)
                if not request:
                    os._exit(0)  # whoever asked is gone
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for other in (requests, woken, waking, *endings.values()):
                        other.close()
                    _become(request, ends)
                    return
                for fd in ends[1:]:
                    os.close(fd)
                endings[pid] = socket.socket(fileno=ends[0])
                endings[pid].sendall(_number.pack(pid))


def _bury(endings: dict[int, socket.socket]) -> None:
    """Tell of all commands that have ended."""
    while endings:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with endings.pop(pid) as ending, contextlib.suppress(BrokenPipeError):
            ending.sendall(_number.pack(os.waitstatus_to_exitcode(status)))


def _become(request: bytes, ends: list[int]) -> None:
    """Be the command that was asked for."""
    words, directory, environment = json.loads(request)
    _, *files = ends
    if len(files) == 3:
        os.setsid()
    for fd, file in zip((1, 2, 0), files, strict=False):
        os.dup2(file, fd)
    for end in ends:
        os.close(end)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = words


def main() -> None:
    """The parent; and each command."""
    _, requests, entry, *imported = sys.argv
    for name in (*IMPORTED, *imported):
        __import__(name)
    for name in IMPORTED_IF_THERE:
        with contextlib.suppress(ModuleNotFoundError):
            __import__(name)
    gc.collect()
    gc.freeze()  # so that commands go on sharing this memory
    serve(socket.socket(fileno=int(requests)))
    module, _, function = entry.partition(":")
    getattr(sys.modules.get(module) or importlib.import_module(module), function)()


if __name__ == "__main__":
    main()
