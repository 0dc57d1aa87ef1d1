"""Run a program and measure it from outside, from its first mark to its last."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bench.peers import answers
from bench.peers.catalogue import Peer
from bench.peers.environments import HERE, python_of
from bench.peers.on_topics import Topics
from bench.processes import end_tree, listening, postgres_cpu, tree_cpu, tree_megabytes

ROOT = HERE.parent.parent
PATIENCE_SECONDS = 600.0


class Failed(Exception):
    """A program failed or took too long; the message has the end of its log."""


class Run(NamedTuple):
    """Figures of the records after the warm-up."""

    records: int
    seconds: float
    cpu_seconds: float
    """CPU of all its processes, and of Postgres or Kafka if it uses them on this machine."""
    megabytes: float
    """Resident memory of its processes at the end, without Postgres."""
    latencies: list[float] | None = None
    """Milliseconds per record, for a program with a fixed arrival rate."""

    @property
    def rate(self) -> float:
        """Records per second."""
        return self.records / self.seconds

    @property
    def cpu_micros(self) -> float:
        """Microseconds of CPU per record."""
        return self.cpu_seconds / self.records * 1e6


class Mark(NamedTuple):
    """A mark that a program printed."""

    at: float
    """Time of the mark, seconds."""
    cpu: float
    """CPU used until then, seconds."""
    done: int
    """Records done, for the first mark."""


@dataclass(frozen=True)
class Task:
    """The input and the options of a run."""

    input: Path
    records: int
    warm: int
    batch: int
    cores: int
    url: str
    kafka: str | None = None
    """HOST:PORT of a broker, if the program works between two topics."""
    rate: float | None = None
    """Arrival rate in records per second; None: as fast as possible."""


def run(peer: Peer, task: Task, directory: Path, right: answers.Expected) -> Run:
    """Run a program in a separate process, and check its balances.

    Raises:
        Failed: the program did not finish.
        WrongAnswer: its balances are wrong.
        NotInstalled: its packages cannot be installed.
    """
    python = Path(sys.executable) if peer.environment is None else python_of(peer.environment)
    out = Path(tempfile.mkdtemp(prefix=f"{peer.program}-", dir=directory))
    try:
        started = _Started(python, peer, task, out, directory)
        if task.kafka is not None:
            with ThreadPoolExecutor(1) as pool:  # the bench has an event loop in its own thread
                return pool.submit(_between_topics, started, right).result()
        found = _by_its_marks(started)
        if peer.answers:
            answers.check(answers.read(out), right)
        else:
            answers.check_finals(answers.read_finals(out), right)
        latencies = out / "latencies.json"
        return found._replace(
            latencies=json.loads(latencies.read_text()) if latencies.exists() else None
        )
    finally:
        shutil.rmtree(out, ignore_errors=True)


@dataclass(frozen=True)
class _Started:
    """How a program is started, and its use of resources."""

    python: Path
    peer: Peer
    task: Task
    out: Path
    directory: Path

    @contextmanager
    def program(self, *further: str) -> Iterator[subprocess.Popen[str]]:
        """The running program; in the end it and all it has started are killed.

        Args:
            further: options.
        """
        peer, task = self.peer, self.task
        command = [
            sys.executable, str(HERE / "subreaper.py"), str(self.python),
            str(HERE / "programs" / f"on_{peer.program}.py"),
            "--input", str(task.input), "--out", str(self.out), "--setting", peer.setting,
            "--records", str(task.records), "--warm", str(task.warm), "--batch", str(task.batch),
            "--cores", str(task.cores), "--url", task.url,
            *(["--rate", str(task.rate)] if task.rate else []), *further,
        ]  # fmt: skip
        path = f"{self.python.parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path}
        if peer.environment is None:
            environment["PYTHONPATH"] = str(ROOT)
        with self._log.open("w") as errors:
            process = subprocess.Popen(
                command, cwd=self.directory, env=environment, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            )  # fmt: skip
        too_long = threading.Timer(PATIENCE_SECONDS, end_tree, (process.pid,))
        too_long.start()
        try:
            yield process
        finally:
            too_long.cancel()
            end_tree(process.pid)
            process.wait()

    @property
    def _log(self) -> Path:
        return self.directory / f"{self.peer.program}-{self.peer.setting}.log"

    def cpu(self, process: subprocess.Popen[str]) -> float:
        """CPU seconds of its processes, and of Postgres and Kafka if it uses them on this
        machine."""
        found = tree_cpu(process.pid)
        if self.peer.uses_postgres:
            found += postgres_cpu(self.task.url)
        if self.task.kafka is not None:
            broker = listening(int(self.task.kafka.rpartition(":")[2]))
            found += 0.0 if broker is None else tree_cpu(broker)
        return found

    def found(self, marks: list[Mark], megabytes: float) -> Run:
        """The figures between the marks.

        Raises:
            Failed: the program did not finish, or too many records were done at once.
        """
        peer, task = self.peer, self.task
        if len(marks) != 2:
            raise Failed(f"{peer.label}: {self._log.read_text()[-1500:]}")
        begin, end = marks
        counted = task.records - begin.done
        if 2 * counted < task.records - task.warm:
            raise Failed(
                f"{peer.label}: {begin.done} records were done at once; use a larger input"
            )
        return Run(counted, end.at - begin.at, end.cpu - begin.cpu, megabytes)


def _by_its_marks(started: _Started) -> Run:
    """Read time and CPU at the program's marks, and let it end."""
    with started.program() as process:
        marks = _marks(process, lambda: started.cpu(process))
        megabytes = tree_megabytes(process.pid)
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.close()
        process.wait()
    return started.found(marks, megabytes)


def _between_topics(started: _Started, right: answers.Expected) -> Run:
    """Read time and CPU when the balances in the output topic are enough, and check them."""
    task = started.task
    assert task.kafka is not None
    topics = Topics(task.kafka, task.input.read_bytes().splitlines()[: task.records])
    topics.fill(task.warm if task.rate else task.records)
    marks: list[Mark] = []
    further = ("--kafka", task.kafka, "--payments", topics.payments, "--balances", topics.balances)
    with started.program(*further) as process:

        def mark(done: int) -> None:
            marks.append(Mark(time.perf_counter(), started.cpu(process), done))

        seen = asyncio.run(
            topics.watch(
                task.records, task.warm, task.rate, mark, lambda: process.poll() is not None
            )
        )
        megabytes = tree_megabytes(process.pid)
    found = started.found(marks, megabytes)
    answers.check(seen.balances, right)
    return found._replace(latencies=seen.latencies)


def _marks(process: subprocess.Popen[str], cpu: Callable[[], float]) -> list[Mark]:
    """Read the program's marks."""
    found: list[Mark] = []
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("mark "):
            done = line.split()[2:]
            found.append(Mark(time.perf_counter(), cpu(), int(done[0]) if done else 0))
        if line.startswith("mark end"):
            break
    return found
