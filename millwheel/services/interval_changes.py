"""Changes of intervals by operators, with their notes in the log of operators (decision 59)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from millwheel.core.clock import SystemClock
from millwheel.core.own_loop import run_to_end
from millwheel.errors import NotCarriedOut
from millwheel.services.operating import Operator
from millwheel.store.console.administration import transaction
from millwheel.store.console.asking import Actor, Asking
from millwheel.store.port.placement import Placement
from millwheel.store.postgres.store import PostgresStore

T = TypeVar("T")


class Noted(NamedTuple):
    """An operation as ``millwheel log`` shows it."""

    verb: str
    payload: dict[str, Any]


def operate(
    url: str,
    pipeline: str,
    actor: Actor,
    noted: Noted,
    work: Callable[[Operator], Awaitable[T]],
    report: Callable[[str], None] = lambda line: None,
) -> T:
    """Run an action, and note it once workers were asked for it.

    Args:
        report: called whenever the reason for waiting changes.
    """

    def note() -> None:
        with transaction(url) as connection:
            Asking(connection, pipeline).note(actor, noted.verb, noted.payload)

    async def act(store: PostgresStore) -> T:
        return await work(Operator(store, SystemClock(), report))

    try:
        done = _with_store(url, pipeline, act)
    except NotCarriedOut:  # the workers continue with it
        note()
        raise
    note()
    return done


def placement_of(url: str, pipeline: str) -> Placement:
    """Intervals and workers now."""
    return _with_store(url, pipeline, lambda store: store.read_placement())


def _with_store(url: str, pipeline: str, work: Callable[[PostgresStore], Awaitable[T]]) -> T:
    async def run() -> T:
        store = await PostgresStore(url, pipeline).open()
        try:
            return await work(store)
        finally:
            await store.close()

    return run_to_end(run())
