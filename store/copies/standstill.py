"""Brings two pipelines to the same positions of their input, with nothing on the way, so that one
can take over the outputs of the other without a gap and without a record twice (decision 87).

::

    pause all sources ─▶ both have finished the rows they read ─▶ the same positions? ─▶ switch
        ▲                                                              │no
        └───────────── resume both for a moment ◀──────────────────────┘
    ─▶ all workers have noticed ─▶ resume
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import psycopg

from millwheel.errors import StoreUnavailable, UsageError
from millwheel.store.console.administration import pause
from millwheel.store.console.asking import UNNAMED, Actor
from millwheel.store.console.step_names import stored_nodes
from millwheel.store.copies.origins import connected
from millwheel.store.copies.switching import Check, Switched, Takeover, foresee_switch, switch
from millwheel.store.postgres.statements import Statements

NOTICED_SECONDS = 2.0
"""Time after which each worker has noticed a pause: it polls every second."""

LOOK_SECONDS = 0.2

READ_ON_SECONDS = 1.0
"""How long both read on if their positions differ."""

ROUND_SECONDS = 5.0
"""Time that the next attempt needs at least: for the pause, and for a heartbeat of each worker."""

Tell = Callable[[str], None]

Positions = dict[tuple[str, str], str | None]
"""By injector and partition, as JSON."""


class StandingLook(NamedTuple):
    at_work: bool
    heartbeat: datetime | None
    """The oldest of the live workers; None: there is none."""
    at: datetime
    positions: Positions


def switch_at_standstill(
    url: str,
    takeover: Takeover,
    *,
    wait_seconds: float = 60.0,
    actor: Actor = UNNAMED,
    tell: Tell = lambda _: None,
) -> Switched:
    """Switch while both pipelines stand still at the same positions.

    Sources that were paused before stay paused. Errors as `switch`; a `UsageError` too if the
    positions stay different: the input grows all the time, or the code names its sources otherwise.
    """
    names = (takeover.pipeline, takeover.successor)
    deadline = time.monotonic() + wait_seconds
    foresee_switch(url, takeover)
    with connected(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        _refuse_other_sources(connection, names)
        while True:
            with _paused(url, names, actor):
                tell("sources are paused; waiting until both have finished the rows they read")
                looks = _await_still(connection, names, deadline)
                if looks[0].positions == looks[1].positions:
                    check = _requiring(names, _positions(looks))
                    left = max(0.0, deadline - time.monotonic())
                    done = switch(url, takeover, check=check, wait_seconds=left, actor=actor)
                    tell("switched; waiting until all workers have noticed")
                    _await_noticed(connection, names, done.at)
                    return done
                if time.monotonic() + ROUND_SECONDS >= deadline:
                    raise _apart(names, looks)
            tell("they have read their sources up to different rows; both read on for a moment")
            time.sleep(READ_ON_SECONDS)


def _requiring(names: Sequence[str], expected: list[Positions]) -> Check:
    def check(connection: psycopg.Connection[Any]) -> None:
        if _positions([_look(connection, name) for name in names]) != expected:
            raise UsageError(
                "a source was read although it is paused; nothing was changed. Try again"
            )

    return check


@contextlib.contextmanager
def _paused(url: str, names: Sequence[str], actor: Actor) -> Iterator[None]:
    """Pause the sources of both, and resume those that this call has paused."""
    changed: dict[str, list[str]] = {}
    try:
        for name in names:
            changed[name] = pause(url, name, actor=actor).changed
        yield
    finally:
        for name, injectors in changed.items():
            if injectors:
                pause(url, name, injectors, paused=False, actor=actor)


def _await_still(
    connection: psycopg.Connection[Any], names: Sequence[str], deadline: float
) -> list[StandingLook]:
    """Two looks with the same positions, and a heartbeat of each worker in between, in which it
    has reported that no row waits in its memory."""
    time.sleep(NOTICED_SECONDS)
    before: list[StandingLook] | None = None
    while True:
        looks = [_look(connection, name) for name in names]
        if any(look.at_work for look in looks) or (
            before is not None and _positions(before) != _positions(looks)
        ):
            before = None
        elif before is None:
            before = looks
        elif all(
            look.heartbeat is None or look.heartbeat > first.at
            for first, look in zip(before, looks, strict=True)
        ):
            return looks
        if time.monotonic() >= deadline:
            busy = [name for name, look in zip(names, looks, strict=True) if look.at_work]
            raise StoreUnavailable(
                f"{' and '.join(busy or names)} did not finish the records that were read: see "
                "millwheel status. The sources read on; nothing was changed"
            )
        time.sleep(LOOK_SECONDS)


def _await_noticed(connection: psycopg.Connection[Any], names: Sequence[str], at: datetime) -> None:
    """A heartbeat that begins after the switch shows a worker its outputs. It takes a lease at the
    most: a worker that sends none loses its intervals then."""
    while True:
        beats = [_look(connection, name).heartbeat for name in names]
        if all(beat is None or beat > at for beat in beats):
            time.sleep(LOOK_SECONDS)  # until the answers are there, too
            return
        time.sleep(LOOK_SECONDS)


def _look(connection: psycopg.Connection[Any], name: str) -> StandingLook:
    statements = Statements(name)
    inboxes = _inboxes(connection, name)
    views = {view: view for view in ("pending_productions", "sinks", "source_partitions")}
    ((at_work, heartbeat, at),) = connection.execute(
        statements.get("is_at_work", **views)
    ).fetchall()
    rows = connection.execute(
        statements.get("read_positions", latest_commits="latest_commits")
    ).fetchall()
    positions = {
        (injector, partition): position
        for injector, partition, position in rows
        if injector not in inboxes
    }
    return StandingLook(at_work, heartbeat, at, positions)


def _inboxes(connection: psycopg.Connection[Any], name: str) -> set[str]:
    """Injectors of inboxes: each pipeline has its own records there."""
    nodes = stored_nodes(connection, name)
    return {step for step, node in nodes.items() if node.get("source", {}).get("inbox")}


def _positions(looks: Sequence[StandingLook]) -> list[Positions]:
    return [look.positions for look in looks]


def _refuse_other_sources(connection: psycopg.Connection[Any], names: Sequence[str]) -> None:
    sources = [
        {
            step: node["source"]
            for step, node in stored_nodes(connection, name).items()
            if "source" in node and not node["source"].get("inbox")
        }
        for name in names
    ]
    if sources[0] != sources[1]:
        differing = sorted(
            step for step in {*sources[0], *sources[1]}
            if sources[0].get(step) != sources[1].get(step)
        )  # fmt: skip
        raise UsageError(
            f"{names[0]!r} and {names[1]!r} read other sources ({', '.join(differing)}), so there "
            "are no same positions at which both could stand. Switch without --drain; nothing was "
            "changed"
        )


def _apart(names: Sequence[str], looks: Sequence[StandingLook]) -> UsageError:
    former, new = (look.positions for look in looks)
    partitions = sorted(part for part in {*former, *new} if former.get(part) != new.get(part))
    injector, partition = partitions[0]
    more = f", and {len(partitions) - 1:,} more" if len(partitions) > 1 else ""
    return UsageError(
        f"{names[0]!r} and {names[1]!r} have read {injector} up to different rows: {partition} to "
        f"{former.get(partitions[0])} and {new.get(partitions[0])}{more}. Stop the programs that "
        "write to it for a moment, and try again; or switch without --drain. The sources read on; "
        "nothing was changed"
    )
