"""One pipeline with the engine and on Spark, on the same two cores: rate, and how long a record
takes.

The workload of the other parts, with its last balances in a table with a key, over accounts of
several numbers, each of which the engine has given its state. Then come more records: for the
engine in a process of its own; and for Spark, to which the pipeline moves with its state, by
``millwheel spark run`` on ``local[2]``. Its batches are counted by the store from the
second on; the first one loads the state. A record takes half of the time between two batches, and a
batch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from bench.apart import apart
from bench.fleet import ROOT
from bench.meter import Cost, metered
from bench.server import drop, fresh_store
from bench.workload import BALANCES, PAYMENTS, Balance, KeepBalance
from millwheel import JsonLines, Pipeline, Table
from millwheel.runtime.engine import Engine
from millwheel.runtime.environment import Options
from millwheel.store.postgres.store import PostgresStore

NAME = "on_spark"
BATCH_ROWS = 100_000
"""The default of ``millwheel spark run``."""
FILE = "BENCH_FILE"
LOOK_SECONDS = 0.1


def pipeline() -> Pipeline:
    """Balances of accounts, the last of each in a table."""
    made = Pipeline(NAME)
    made.inject(PAYMENTS, JsonLines(os.environ[FILE]), timestamp=lambda payment: payment.at)
    made.add(KeepBalance(), PAYMENTS.by(lambda payment: payment.account))
    made.sink(BALANCES, Table("balances", Balance, key=("account",), producer_key=("account",)))
    return made


def write(path: Path, keys: int, records: int, first: int = 0) -> None:
    """Append payments of accounts in turn, so that as many keys as possible have state."""
    with path.open("a") as file:
        for number in range(first, first + records):
            at = f"2024-01-01T{number // 3_600_000 % 24:02}:00:00Z"
            account = number * 7_919 % keys
            file.write(f'{{"at":"{at}","account":{account},"amount":{number % 1000}}}\n')


async def fill(url: str, path: str) -> None:
    """The engine gives every account its state."""
    os.environ[FILE] = path
    store = await fresh_store(url, NAME)
    await _run(store)


async def by_engine(url: str, path: str, records: int) -> Cost:
    """The engine on the appended rows, its start and its stop included."""
    os.environ[FILE] = path
    store = await PostgresStore(url, NAME).open()
    with metered(url, records) as cost:
        await _run(store)
    return cost


async def _run(store: PostgresStore) -> None:
    engine = Engine(pipeline(), store, options=Options(keep_open=True))
    await engine.start()
    await engine.run()
    await engine.stop()
    await store.close()


def by_spark(url: str, directory: Path, path: Path, rows: int) -> dict[str, float]:
    """Spark, to which the pipeline is moved with its state: between the first and the last full
    batch, of so many rows."""
    environment = {**os.environ, FILE: str(path), "PYTHONPATH": str(ROOT)}
    place = ["--store", url, "--checkpoint", str(directory / "checkpoint")]
    command = [sys.executable, "-m", "millwheel"]
    began = time.monotonic()
    move = [*command, "spark", "take", "bench.on_spark:pipeline", *place]
    subprocess.run(move, env=environment, check=True, stdout=subprocess.DEVNULL)
    run = [
        *command, "spark", "run", "bench.on_spark:pipeline", *place, "--max-rows", str(rows),
        "--conf", "spark.driver.memory=4g", "--keep-open", "--until-caught-up",
    ]  # fmt: skip
    looks: list[tuple[float, int, int]] = []
    with (directory / "on_spark.log").open("wb") as log:
        process = subprocess.Popen(run, env=environment, stdout=log, stderr=log)
        while process.poll() is None:
            if (found := _look(url)) is not None:
                looks.append((time.monotonic(), *found))
            time.sleep(LOOK_SECONDS)
    assert process.returncode == 0, (directory / "on_spark.log").read_text()[-3000:]
    times = {batch: at for at, batch, _ in reversed(looks) if batch >= 0}
    done = {batch: processed for _, batch, processed in looks}
    full = [batch for batch in times if batch > 0 and done[batch] - done[batch - 1] >= rows]
    first, last = min(full), max(full)
    seconds = (times[last] - times[first]) / (last - first)
    return {
        "loaded_seconds": times[0] - began,
        "batch_seconds": seconds,
        "rate": rows / seconds,
        "record_seconds": 1.5 * seconds,
    }


def _look(url: str) -> tuple[int, int] | None:
    """The number of the last batch, and of the records processed."""
    text = sql.SQL(
        "SELECT batch, coalesce((counters -> 'keep_balance' ->> 'processed')::bigint, 0) FROM {}"
    ).format(sql.Identifier(NAME, "spark_query"))
    try:
        with psycopg.connect(url) as connection:
            return connection.execute(text).fetchone()
    except psycopg.errors.UndefinedTable:
        return None


async def measure(
    url: str, directory: Path, *, keys: tuple[int, ...], records: int, rows: int
) -> dict[str, Any]:
    """Measure both with the state of so many keys, on so many further records each, in batches of
    so many rows on Spark."""
    found = []
    for number in keys:
        path = directory / f"payments_{number}.jsonl"
        write(path, number, number)
        await apart(fill, url, str(path))
        write(path, number, records, number)
        engine = await apart(by_engine, url, str(path), records)
        place = directory / f"keys_{number}"
        place.mkdir()
        write(path, number, records, number + records)
        spark = by_spark(url, place, path, rows)
        line: dict[str, float] = {"keys": number, "records": records, "batch_rows": rows}
        line |= {"engine_rate": engine.rate, **spark}
        line["ratio"] = engine.rate / spark["rate"]
        found.append(line)
        print("on spark:", json.dumps(line), flush=True)
        path.unlink()
        drop(url, NAME)
    return {"keys": found}
