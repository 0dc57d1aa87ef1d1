"""A store for the pages: a worker has processed orders of `hostile_shop`, and pauses."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import psycopg
from psycopg import sql

from millwheel.store.console.administration import pause, transaction
from millwheel.store.console.asking import Actor, Asking
from millwheel.store.console.migrate import migrate
from tests.support.hostile_texts import HOSTILE, LONG, SECRET_KEY, SECRET_VALUE

SHOP = "shop"
SECONDS = 60.0
"""Longest wait for the worker, on a machine that is busy with other tests."""


class BrowsedStore:
    """Args:
    texts: each one is a key, a value, an error, a tag of a timer, and a reason. `SECRET_KEY` and
        `SECRET_VALUE` are there besides.
    """

    pipeline = SHOP

    def __init__(self, url: str, directory: Path, texts: Iterable[str]) -> None:
        self.url = url
        self._directory = directory
        texts = list(texts)
        second = itertools.count()
        orders = [
            {"customer": text[:1_000], "note": text, "what": what, "second": next(second)}
            for text in texts
            for what in ("sum", "sum", "fail", "park", "sum")
        ]
        orders += [
            {"customer": SECRET_KEY, "note": SECRET_VALUE, "what": what, "second": next(second)}
            for what in ("sum", "fail", "park")
        ]
        lines = [msgspec.json.encode(order) for order in orders]
        lines.append(b'{"customer": ' + texts[0].encode() + b" not JSON")
        (directory / "orders.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
        migrate(url, SHOP)
        self.worker: subprocess.Popen[bytes] | None = self._start()
        try:
            self._fill(texts)
        except BaseException:
            self.close()
            raise

    def _fill(self, texts: list[str]) -> None:
        failed = len(texts) + 1
        self._wait("SELECT count(*) >= %s FROM parked_keys", failed)
        self._wait("SELECT count(*) >= %s FROM dead_letter WHERE parked IS NULL", failed + 1)
        self._wait("SELECT count(*) >= %s FROM sold", 4 * len(texts) + 2)
        with transaction(self.url) as connection:  # about a record that is not there
            item = f"record:{'0' * 32}"
            Asking(connection, SHOP).set_aside_item(Actor("dan", "mine"), "check", SECRET_KEY, item)
        pause(self.url, SHOP, actor=Actor(texts[0], texts[1]))
        for text in texts:
            with transaction(self.url) as connection:
                Asking(connection, SHOP).note(Actor(text[:100], text), "note", {"text": text})

    def _start(self) -> subprocess.Popen[bytes]:
        root = Path(__file__).parents[2]
        environment = {
            **os.environ, "PYTHONPATH": str(root), "HOSTILE_SHOP": str(self._directory),
            "MILLWHEEL_STORE": self.url,
        }  # fmt: skip
        command = "millwheel", "worker", "tests.support.hostile_shop:pipeline", "--keep-open"
        with (self._directory / "worker.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *command], cwd=self._directory, env=environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def read(self, query: str, *params: Any) -> list[tuple[Any, ...]]:
        """Rows of a statement about the pipeline's tables and views."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(SHOP)))
            return connection.execute(query.encode(), params or None).fetchall()

    def number(self, query: str, *params: Any) -> int:
        """The only figure of a statement."""
        ((found,),) = self.read(query, *params)
        return int(found)

    def _wait(self, query: str, *params: Any) -> None:
        self.until(lambda: self._holds(query, *params), query)

    def _holds(self, query: str, *params: Any) -> bool:
        try:
            return self.read(query, *params) == [(True,)]
        except psycopg.errors.UndefinedTable:
            return False  # the worker has not made it yet

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """`AssertionError` if the worker ends, or it takes too long."""
        deadline = time.monotonic() + SECONDS
        while not holds():
            ended = self.worker is not None and self.worker.poll() is not None
            assert not ended, self._log()
            assert time.monotonic() < deadline, (what, self._log())
            time.sleep(0.05)

    def _log(self) -> str:
        return (self._directory / "worker.log").read_text()[-6_000:]

    def close(self) -> None:
        worker, self.worker = self.worker, None
        if worker is not None:
            worker.terminate()
            worker.wait(SECONDS)


def hostile_store(url: str, directory: Path) -> BrowsedStore:
    return BrowsedStore(url, directory, [*HOSTILE.values(), LONG])
