"""Pipelines on Spark, killed again and again: ``python -m tests.spark.engine_service [--kills 10]
[--cluster] [NAME…]``.

Each pipeline of `tests.support.spark_pipelines` runs by ``millwheel spark run`` on
``local[2]``, or on a master with two workers; with ``--move`` it is moved to Spark and back amid
its input. The driver, and on a cluster also the executors, are killed amid batches; a driver is
started again, with the same command. In the end the tables must equal those of the engine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from examples.nexmark.options import Options
from examples.nexmark.sources import write
from millwheel.services.run import Run
from millwheel.spark.java import prepare_environment
from millwheel.store import embedded
from millwheel.store.console.migrate import migrate
from tests.support import spark_pipelines
from tests.support.spark_cluster import ROOT, SparkProcesses
from tests.support.spark_inputs import write_flights, write_lines
from tests.support.spark_pipelines import FILE, FINAL

MODULE = "tests.support.spark_pipelines"
EXECUTOR = "CoarseGrainedExecutorBackend"


class OnSpark:
    """One pipeline on Spark, in a process group of its own."""

    def __init__(
        self,
        name: str,
        store: str,
        directory: Path,
        environment: Mapping[str, str],
        *options: str,
    ) -> None:
        self.pipeline = getattr(spark_pipelines, name)().name
        self._store = store
        self.log = directory / f"{name}.log"
        self._command = [
            sys.executable, "-m", "millwheel", "spark", "run", f"{MODULE}:{name}",
            "--store", store, "--checkpoint", str(directory / f"{name}_checkpoint"), *options,
        ]  # fmt: skip
        self._environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
        self._process: subprocess.Popen[bytes]

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        """Kill the driver, with the JVM and its Python processes."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    @property
    def code(self) -> int | None:
        """The exit code, once it has ended."""
        return self._process.poll()

    def batch(self) -> int:
        """The number of the last batch in the tables."""
        text = sql.SQL("SELECT max(batch) FROM {}").format(
            sql.Identifier(self.pipeline, "spark_query")
        )
        with psycopg.connect(self._store) as connection:
            try:
                found = connection.execute(text).fetchone()
            except psycopg.errors.UndefinedTable:
                return -1
        return -1 if found is None or found[0] is None else int(found[0])

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]


def kill_executor(choice: random.Random) -> bool:
    """Kill one executor of the cluster; whether there was one."""
    found = subprocess.run(["pgrep", "-f", EXECUTOR], capture_output=True, text=True, check=False)
    pids = [int(pid) for pid in found.stdout.split()]
    if pids:
        os.kill(choice.choice(pids), signal.SIGKILL)
    return bool(pids)


def run_killed(
    spark: OnSpark,
    kills: int,
    choice: random.Random,
    *,
    executors: bool,
    say: Callable[[str], None],
) -> list[str]:
    """Run a pipeline to its end, with kills amid batches; returns what went wrong."""
    spark.start()
    done = {"driver": 0, "executor": 0}
    while sum(done.values()) < kills:
        before = spark.batch()
        deadline = time.monotonic() + 150
        while spark.batch() < before + 1 and spark.code is None and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(choice.uniform(0, 4))
        if spark.code is not None:
            if spark.code:
                return [f"it ended with {spark.code}: {spark.tail()}"]
            break
        if executors and choice.random() < 0.5 and kill_executor(choice):
            done["executor"] += 1
            continue
        spark.kill()
        done["driver"] += 1
        spark.start()
    deadline = time.monotonic() + 600
    while spark.code is None and time.monotonic() < deadline:
        time.sleep(0.5)
    if spark.code is None:
        spark.kill()
        return [f"it did not end: {spark.tail()}"]
    say(f"{spark.pipeline}: {done} killed, {spark.batch() + 1} batches")
    return [f"it ended with {spark.code}: {spark.tail()}"] if spark.code else []


def _for_executors() -> list[str]:
    """The variables that the pipelines read, for executors of a cluster."""
    names = (FILE, "NEXMARK_DIR", "NEXMARK_LATENESS")
    return [
        word
        for name in names
        for word in ("--conf", f"spark.executorEnv.{name}={os.environ[name]}")
    ]


def rows_of(store: str, pipeline: str, table: str, columns: str) -> list[tuple[Any, ...]]:
    text = sql.SQL("SELECT {} FROM {}").format(sql.SQL(columns), sql.Identifier(pipeline, table))
    with psycopg.connect(store) as connection:
        return sorted(connection.execute(text).fetchall(), key=repr)


def by_engine(store: str, name: str) -> str:
    """Run a pipeline with the engine; returns its name there."""
    pipeline = getattr(spark_pipelines, name)()
    pipeline.name += "_by_engine"
    migrate(store, pipeline.name)
    asyncio.run(Run(pipeline, store).run())
    return str(pipeline.name)


def run(
    names: list[str], directory: Path, *, kills: int, cluster: bool, batch_rows: int, rows: int,
    seed: int,
    say: Callable[[str], None],
) -> list[str]:  # fmt: skip
    """Run pipelines one after the other; returns the differences.

    Args:
        batch_rows: most rows of a batch.
        rows: rows of each input.
    """
    choice = random.Random(seed)
    write_flights(directory / "flights.jsonl", rows, seed)
    write_lines(directory / "lines.jsonl", rows // 2, seed)
    write(directory / "events", Options(events=rows * 2, rate=100, group=50))
    os.environ.update({"NEXMARK_DIR": str(directory / "events"), "NEXMARK_LATENESS": "1"})
    server = embedded.start(directory / "store")
    wrong: list[str] = []
    prepare_environment()
    try:
        with closing(SparkProcesses(directory)) as processes:
            options = ["--max-rows", str(batch_rows)]
            if cluster:
                options += [
                    "--master",
                    processes.standalone(2),
                    "--conf",
                    "spark.executor.memory=600m",
                ]
                options += ["--conf", "spark.driver.host=127.0.0.1"]
            for name in names:
                file = "lines.jsonl" if name == "words" else "flights.jsonl"
                os.environ[FILE] = str(directory / file)
                engine = by_engine(server.url, name)
                spark = OnSpark(name, server.url, directory, {}, *options, *_for_executors())
                migrate(server.url, spark.pipeline)
                found = run_killed(spark, kills, choice, executors=cluster, say=say)
                for table, columns in FINAL[name].items():
                    expected = rows_of(server.url, engine, table, columns)
                    got = rows_of(server.url, spark.pipeline, table, columns)
                    say(
                        f"{name}: {table} has {len(got)} rows, "
                        f"{'equal' if got == expected else 'NOT EQUAL'}"
                    )
                    if got != expected:
                        found.append(
                            f"{name}: {table} differs: {len(got)} rows, not {len(expected)}"
                        )
                wrong += found
    finally:
        embedded.remove(directory / "store")
    return wrong


def run_moved(
    names: list[str],
    directory: Path,
    *,
    kills: int,
    batch_rows: int,
    rows: int,
    seed: int,
    say: Callable[[str], None],
) -> list[str]:
    """Move pipelines to Spark and back amid their input; returns the differences from undisturbed
    runs.

    A third of the input is processed by a worker process, a third on Spark, whose driver is killed,
    and a third by the engine again.
    """
    choice = random.Random(seed)
    whole, file = directory / "whole.jsonl", directory / "flights.jsonl"
    write_flights(whole, rows, seed)
    lines = whole.read_text().splitlines(keepends=True)
    server = embedded.start(directory / "store")
    prepare_environment()
    os.environ["PYTHONPATH"] = str(ROOT)
    wrong: list[str] = []
    try:
        for name in names:
            os.environ[FILE] = str(whole)
            engine = by_engine(server.url, name)
            os.environ[FILE] = str(file)
            file.write_text("".join(lines[: rows // 3]))
            spark = OnSpark(
                name,
                server.url,
                directory,
                {},
                "--max-rows",
                str(batch_rows),
                "--until-caught-up",
                "--keep-open",
            )
            migrate(server.url, spark.pipeline)
            command(["run", f"{MODULE}:{name}", "--keep-open"], server.url)
            with worker(f"{MODULE}:{name}", server.url, directory) as alive:
                place = ["--checkpoint", str(directory / f"{name}_checkpoint")]
                taken = command(["spark", "take", f"{MODULE}:{name}", *place], server.url)
                say(taken.splitlines()[-1])
                if alive.wait(60) == 0:
                    wrong.append(f"{name}: the worker ended as if all were done")
            file.write_text("".join(lines[: 2 * rows // 3]))
            wrong += run_killed(spark, kills, choice, executors=False, say=say)
            file.write_text("".join(lines))
            returned = command(["spark", "return", f"{MODULE}:{name}"], server.url)
            say(returned.splitlines()[-1])
            command(["run", f"{MODULE}:{name}"], server.url)
            for table, columns in FINAL[name].items():
                expected = rows_of(server.url, engine, table, columns)
                got = rows_of(server.url, spark.pipeline, table, columns)
                say(
                    f"{name}: {table} has {len(got)} rows, "
                    f"{'equal' if got == expected else 'NOT EQUAL'}"
                )
                if got != expected:
                    wrong.append(f"{name}: {table} differs: {len(got)} rows, not {len(expected)}")
    finally:
        embedded.remove(directory / "store")
    return wrong


def command(words: list[str], store: str) -> str:
    """Run a command to its end; returns its output."""
    done = subprocess.run(
        [sys.executable, "-m", "millwheel", *words, "--store", store],
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def worker(target: str, store: str, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker process that has the whole pipeline."""
    with (directory / "worker.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "millwheel", "worker", target, "--keep-open", "--store", store],
            stdout=log,
            stderr=log,
        )
    try:
        time.sleep(5.0)
        assert process.poll() is None, (directory / "worker.log").read_text()
        yield process
    finally:
        process.kill()
        process.wait()


def main() -> int:
    """Run it in a directory of its own."""
    parser = argparse.ArgumentParser(description="Pipelines on Spark under kills.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(FINAL)}")
    parser.add_argument("--kills", type=int, default=10, help="of each pipeline")
    parser.add_argument("--move", action="store_true", help="to Spark and back, amid the input")
    parser.add_argument("--cluster", action="store_true", help="a master and two workers")
    parser.add_argument("--batch-rows", type=int, default=300)
    parser.add_argument("--rows", type=int, default=4_000, help="rows of each input")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="millwheel-engine-service-"))
    directory.chmod(0o755)
    common = {
        "kills": given.kills,
        "batch_rows": given.batch_rows,
        "rows": given.rows,
        "seed": given.seed,
    }
    say = partial(print, flush=True)
    try:
        if given.move:
            names = given.names or ["hours", "legs", "rested"]
            wrong = run_moved(names, directory, **common, say=say)
        else:
            names = given.names or list(FINAL)
            wrong = run(names, directory, **common, cluster=given.cluster, say=say)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print("\n".join(wrong) or "all as the engine's")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
