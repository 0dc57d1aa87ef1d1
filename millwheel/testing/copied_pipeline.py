"""A copy of a pipeline's data for tests of new code: production's state, and nothing of it at
risk."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from millwheel.core.model import Key
from millwheel.core.own_loop import run_to_end
from millwheel.errors import UserCodeError
from millwheel.pipeline import Pipeline
from millwheel.runtime.engine import Engine
from millwheel.runtime.environment import Options
from millwheel.store.address import StoreAddress
from millwheel.store.console.inspection import inspect
from millwheel.store.console.presence import present
from millwheel.store.copies.copying import drop_copy
from millwheel.store.copies.forks import fork as make_fork
from millwheel.store.copies.savepoints import savepoint_name
from millwheel.store.postgres.store import PostgresStore
from millwheel.store.snapshot import snapshot

__all__ = ["Fork", "fork"]

NAME_LETTERS = 40
"""Of the pipeline's name in that of the fork, which has 48 at the most."""


class Fork:
    """A copy of a pipeline; made by `fork`.

    ```python
    def has_debts(copy: Fork) -> bool:
        return bool(copy.query("SELECT FROM bills WHERE cents < 0 LIMIT 1"))
    ```

    Attributes:
        name: the name of the copy, also of its schema.
        origin: the pipeline or savepoint that it was copied from.
    """

    def __init__(self, url: str, name: str, origin: str) -> None:
        self._url = url
        self.name = name
        self.origin = origin

    def run(self, code: Pipeline, *, seconds: float = 60.0, keep_open: bool = False) -> None:
        """Run code on the copy, in place of the pipeline's own, until it has processed all input
        that there is. Sinks outside the store get nothing.

        Args:
            code: built like the pipeline; its name does not count.
            seconds: how long it may take.
            keep_open: windows stay open at the end of a bounded input.

        Raises:
            MillwheelError: as a worker would end with: for example `DeployRefused` if the code does
                not fit the state.
            UserCodeError: it has not come to the end within `seconds`.
        """
        run_to_end(self._run(code.named(self.name), seconds, Options(keep_open=keep_open)))

    async def _run(self, code: Pipeline, seconds: float, options: Options) -> None:
        store = PostgresStore(self._url, self.name)
        await store.open()
        try:
            engine = Engine(code, store, options=options)
            try:
                async with asyncio.timeout(seconds):
                    await engine.start()
                    await engine.run(until_done=True)
            except TimeoutError as error:
                raise UserCodeError(
                    f"{self.name} has not processed its input within {seconds:.0f} s: it has "
                    f"{engine.progress()['backlog']} records left. Give it more seconds"
                ) from error
            finally:
                await engine.stop()
        finally:
            await store.close()

    def query(self, text: str, params: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        """The rows of a statement that reads; names of the copy's tables and views need no
        schema."""
        with snapshot(self._url, self.name) as connection:
            return connection.execute(text, params).fetchall()

    def state(self, computation: str, key: Key) -> Any:
        """The state of a key as JSON values; None: there is none."""
        with inspect(self._url) as inspection:
            found = inspection.key(self.name, computation, key).state
        return None if found is None else msgspec.json.decode(found)


@contextlib.contextmanager
def fork(
    store: str | None = None, pipeline: str | None = None, *, savepoint: str | None = None
) -> Iterator[Fork]:
    """Copy a pipeline's data for a test of new code; the copy is dropped at the end.

    ```python
    def test_nobody_owes_money(store: str) -> None:
        with fork(store, "shop", savepoint="nightly") as shop:
            shop.run(pipeline)  # the new code
            assert shop.query("SELECT count(*) FROM bills WHERE cents < 0") == [(0,)]
    ```

    The pipeline may run meanwhile: it is copied as it is at one moment, and the copy reads on from
    there.

    Args:
        store: as ``--store``: a directory or a Postgres URL; None: ``MILLWHEEL_STORE``, or
            ``.millwheel``.
        pipeline: its name; None if the store has only one.
        savepoint: the label of a savepoint; None: the pipeline as it is now.

    Raises:
        UsageError: there is no such store, pipeline or savepoint.
        StoreError: the store cannot be reached, or this login may not copy the pipeline.
    """
    with present(StoreAddress.parse(store)) as presence:
        with inspect(presence.url) as inspection:
            found = inspection.choose(pipeline)
        origin = found if savepoint is None else savepoint_name(found, savepoint)
        name = f"{found[:NAME_LETTERS]}_{uuid.uuid4().hex[:7]}"
        make_fork(presence.url, origin, name)
        try:
            yield Fork(presence.url, name, origin)
        finally:
            drop_copy(presence.url, name)
