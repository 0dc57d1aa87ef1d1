"""Run a program and measure it from outside, from its first mark to its last."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bench.peers import answers
from bench.peers.catalogue import Peer
from bench.peers.environments import HERE, python_of
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
    log = directory / f"{peer.program}-{peer.setting}.log"
    command = [
        sys.executable, str(HERE / "subreaper.py"), str(python), str(HERE / "programs" / f"on_{peer.program}.py"),
        "--input", str(task.input), "--out", str(out), "--setting", peer.setting,
        "--records", str(task.records), "--warm", str(task.warm), "--batch", str(task.batch),
        "--cores", str(task.cores), "--url", task.url,
        *(["--kafka", task.kafka] if task.kafka else []),
        *(["--rate", str(task.rate)] if task.rate else []),
    ]  # fmt: skip
    environment = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    if peer.environment is None:
        environment["PYTHONPATH"] = str(ROOT)
    try:
        found = _watched(command, environment, log, peer, task)
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


def _watched(
    command: list[str], environment: dict[str, str], log: Path, peer: Peer, task: Task
) -> Run:
    """Start the program, read time and CPU at its marks, and let it end."""
    with log.open("w") as errors:
        process = subprocess.Popen(
            command, cwd=log.parent, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
        )  # fmt: skip
    too_long = threading.Timer(PATIENCE_SECONDS, end_tree, (process.pid,))
    too_long.start()

    broker = None
    if peer.needs_kafka and task.kafka:
        broker = listening(int(task.kafka.rpartition(":")[2]))

    def cpu() -> float:
        return (
            tree_cpu(process.pid)
            + (postgres_cpu(task.url) if peer.uses_postgres else 0.0)
            + (tree_cpu(broker) if broker is not None else 0.0)
        )

    try:
        marks = _marks(process, cpu)
        megabytes = tree_megabytes(process.pid)
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.close()
        process.wait()
    finally:
        too_long.cancel()
        end_tree(process.pid)
    if len(marks) != 2:
        raise Failed(f"{peer.name}, {peer.setting}: {log.read_text()[-1500:]}")
    begin, end = marks
    counted = task.records - begin.done
    if 2 * counted < task.records - task.warm:
        raise Failed(f"{peer.label}: {begin.done} records were done at once; use a larger input")
    return Run(counted, end.at - begin.at, end.cpu - begin.cpu, megabytes)


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
