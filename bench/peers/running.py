"""One run of one program, looked at from outside: from its first mark to its last."""

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
    """A program ended before it was done, or took too long; the message has its last words."""


class Run(NamedTuple):
    """What the records after the warm-up took."""

    records: int
    seconds: float
    cpu_seconds: float
    """Of all its processes, and of Postgres or Kafka where it uses it and it runs here."""
    megabytes: float
    """What its processes occupied at the end, Postgres left out."""
    latencies: list[float] | None = None
    """Milliseconds that each record took, of a program that lets them come by the clock."""

    @property
    def rate(self) -> float:
        """Records a second."""
        return self.records / self.seconds

    @property
    def cpu_micros(self) -> float:
        """Microseconds of CPU a record."""
        return self.cpu_seconds / self.records * 1e6


class Mark(NamedTuple):
    """Where a program was when it said so."""

    at: float
    """By the clock, seconds."""
    cpu: float
    """What it had cost, seconds."""
    done: int
    """Records, of the first mark."""


@dataclass(frozen=True)
class Task:
    """What there is to do."""

    input: Path
    records: int
    warm: int
    batch: int
    cores: int
    url: str
    kafka: str | None = None
    rate: float | None = None
    """Records a second, if they are to come by the clock."""


def run(peer: Peer, task: Task, directory: Path, right: answers.Expected) -> Run:
    """Run a program in a process of its own, and check what it answered.

    Raises:
        Failed: it did not come to its end.
        WrongAnswer: it did, with wrong balances.
        NotInstalled: its packages cannot be had.
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
    """Start the program, look at the clocks at its marks, and let it go."""
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
        raise Failed(f"{peer.label}: {begin.done} records were done at once; give it more")
    return Run(counted, end.at - begin.at, end.cpu - begin.cpu, megabytes)


def _marks(process: subprocess.Popen[str], cpu: Callable[[], float]) -> list[Mark]:
    """The program's marks."""
    found: list[Mark] = []
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("mark "):
            done = line.split()[2:]
            found.append(Mark(time.perf_counter(), cpu(), int(done[0]) if done else 0))
        if line.startswith("mark end"):
            break
    return found
