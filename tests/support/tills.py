"""A pipeline that counts money by key, in dollars and then in cents, as files that commands run."""

from __future__ import annotations

import signal
import time

import psycopg
from psycopg import sql

from tests.support.shells import Running, Shell

MODULE = """
import os
from datetime import datetime

from msgspec import Struct, field

from millwheel import Computation, Context, JsonLines, MapState, Pipeline, Record, Settings, Stream


class Sale(Struct):
    at: datetime
    key: str
    cents: int


class Till(Struct):
    dollars: float = 0.0
    by_shop: MapState[str, float] = field(default_factory=MapState)


SALES = Stream("sales", Sale)


class Tills(Computation[Sale, Till]):
    async def process_record(self, record: Record[Sale], ctx: Context[Till]) -> None:
        ctx.state.dollars += record.value.cents / 100
        by_shop = ctx.state.by_shop
        by_shop.put("shop", (await by_shop.get("shop") or 0) + record.value.cents / 100)


pipeline = Pipeline("tills", settings=Settings(intervals=4, fold_seconds=0.2))
pipeline.inject(SALES, JsonLines(os.environ["INPUT"], follow=True), timestamp=lambda sale: sale.at)
pipeline.add(Tills(), SALES.by(lambda sale: sale.key))
"""

NEW = (
    MODULE.replace("dollars: float = 0.0", "cents: int = 0")
    .replace("MapState[str, float]", "MapState[str, int]")
    .replace("ctx.state.dollars +=", "ctx.state.cents +=")
    .replace("record.value.cents / 100", "record.value.cents")
    .replace(
        "    async def process_record",
        """    version = 2
    migrations = {1: lambda old: {"cents": round(old.get("dollars", 0) * 100)}}
    entry_migrations = {"by_shop": {1: lambda old: round(old * 100)}}

    async def process_record""",
    )
)
"""The same tills in cents."""

KEYS = 300


def wait_for(shell: Shell, running: Running, text: str, count: int) -> None:
    for _ in range(300):
        if rows(shell, text) == [(count,)]:
            return
        assert running.process.poll() is None, running.end()
        time.sleep(0.1)
    raise AssertionError(rows(shell, text))


def deploy_former(shell: Shell, keys: int) -> None:
    """Sell 1 cent to each key by code of version 1."""
    deploy_to(shell, MODULE)
    shell("migrate", "tills")
    sell(shell, keys, cents=1)
    running = shell.start("run", "tills:pipeline")
    wait_for(shell, running, "SELECT count(*) FROM tills.state", 2 * keys)
    running.end(signal.SIGINT)


def deploy_new(shell: Shell) -> None:
    """Run code of version 2 until it has all intervals."""
    take_over(shell, NEW, generation=2)


def take_over(
    shell: Shell, module: str, generation: int, number: signal.Signals = signal.SIGINT
) -> None:
    """Run code until it has all intervals, and end it by a signal."""
    deploy_to(shell, module)
    running = shell.start("run", "tills:pipeline")
    wait_for(shell, running, "SELECT min(generation) FROM tills.key_interval", generation)
    running.end(number)


def deploy_to(shell: Shell, module: str) -> None:
    (shell.directory / "tills.py").write_text(module)


def sell(shell: Shell, keys: int, cents: int) -> None:
    rows = [
        {"at": f"2026-01-01T00:00:{cents:02}Z", "key": f"k{key}", "cents": cents}
        for key in range(keys)
    ]
    shell.write(rows, append=True)


def rows(shell: Shell, text: str) -> list[tuple[object, ...]]:
    with psycopg.connect(shell.environment["MILLWHEEL_STORE"]) as connection:
        return connection.execute(sql.SQL(text)).fetchall()
