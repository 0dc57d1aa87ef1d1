"""Kills a pipeline ten times while it adds up payments, and compares the end with arithmetic.

    python -m examples.kill9

Each kill is a SIGKILL at a random moment while records are on their way. Then the same command
starts again, and continues at its last commit.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import psycopg
from msgspec import Struct

from millwheel import Computation, Context, JsonLines, Pipeline, Record, Stream, Table

ACCOUNTS = 1_000
Sums = dict[int, tuple[int, int]]
"""Payments and cents, by account."""

FILE, STORE = "payments.jsonl", "store"
BALANCES = "SELECT account, payments, cents FROM kill9.balances"


class Payment(Struct):
    at: datetime
    account: int
    cents: int


class Balance(Struct):  # the state of an account, and its row in the table
    account: int = 0
    payments: int = 0
    cents: int = 0


PAID, UPDATED = Stream("paid", Payment), Stream("updated", Balance)


class AddUp(Computation[Payment, Balance]):
    writes = (UPDATED,)

    async def process_record(self, record: Record[Payment], ctx: Context[Balance]) -> None:
        state, payment = ctx.state, record.value
        state.account = payment.account
        state.payments += 1
        state.cents += payment.cents
        ctx.produce(UPDATED, Balance(state.account, state.payments, state.cents))


pipeline = Pipeline("kill9")
pipeline.inject(PAID, JsonLines(FILE), timestamp=lambda payment: payment.at)
pipeline.add(AddUp(), PAID.by(lambda payment: payment.account))
pipeline.sink(UPDATED, Table("balances", Balance, key=("account",)))


def main() -> int:
    options = argparse.ArgumentParser(description="Kill a pipeline, and compare its result.")
    options.add_argument("--kills", type=int, default=10)
    options.add_argument("--payments", type=int, default=500_000)
    options.add_argument("--seed", type=int, default=int(time.time()))
    given = options.parse_args()
    chance = random.Random(given.seed)  # noqa: S311
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        truth = write_payments(folder / FILE, given.payments, chance)
        print(f"{given.payments:,} payments of {len(truth):,} accounts, seed {given.seed}")
        run = start(folder)
        for number in range(1, given.kills + 1):
            share = (number - chance.random()) / (given.kills + 1)
            durable = wait(run, folder, given.payments * share)
            run.kill()
            run.wait()
            print(f"kill -9, number {number:2}: {durable:7,} payments were durable", flush=True)
            run = start(folder)
        run.wait()
        with psycopg.connect(url(folder)) as connection:
            table = {row[0]: (row[1], row[2]) for row in connection.execute(BALANCES)}
        millwheel(folder, "stop").wait()
    return compare(truth, table)


def compare(truth: Sums, table: Sums) -> int:
    """Print both, and return the exit code."""
    print(f"{'':8} {'accounts':>9} {'payments':>9} {'cents':>15}")
    for name, found in (("truth", truth), ("result", table)):
        payments, cents = (sum(column) for column in zip(*found.values(), strict=True))
        print(f"{name:8} {len(found):9,} {payments:9,} {cents:15,}")
    wrong = sum(table.get(account) != expected for account, expected in truth.items())
    print("every account is equal" if not wrong else f"{wrong:,} accounts DIFFER")
    return int(wrong > 0)


def write_payments(path: Path, count: int, chance: random.Random) -> Sums:
    """Write the input; the payments and cents of each account, by plain arithmetic."""
    payments: Counter[int] = Counter()
    cents: Counter[int] = Counter()
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    with path.open("wb") as file:
        for number in range(count):
            at = begin + timedelta(milliseconds=number)
            payment = Payment(at, chance.randrange(ACCOUNTS), chance.randrange(1, 10_000))
            payments[payment.account] += 1
            cents[payment.account] += payment.cents
            file.write(msgspec.json.encode(payment) + b"\n")
    return {account: (payments[account], cents[account]) for account in payments}


def start(folder: Path) -> subprocess.Popen[str]:
    return millwheel(folder, "run", "examples.kill9:pipeline")


def wait(run: subprocess.Popen[str], folder: Path, payments: float) -> int:
    """Wait until a number of payments is durable; the number by then."""
    while run.poll() is None:
        try:
            with psycopg.connect(url(folder)) as connection:
                while run.poll() is None:
                    durable = int(sum(row[1] for row in connection.execute(BALANCES)))
                    connection.rollback()
                    if durable >= payments:
                        return durable
                    time.sleep(0.02)
        except psycopg.Error:
            time.sleep(0.1)  # the server or the table is not there yet
    raise SystemExit(f"the run has ended before it was killed: exit code {run.returncode}")


def url(folder: Path) -> str:
    """The address of the store; while there is none, one without a server."""
    return millwheel(folder, "url").communicate()[0].strip() or "host=/nowhere"


def millwheel(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "millwheel", *words, "--store", STORE],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
