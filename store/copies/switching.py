"""Lets the readers of a pipeline read another one, and that one write outside (decision 87).

::

    lock both pipelines ─▶ outputs of the one off, of the other on ─▶ notes in both logs
        ─▶ lead all names ─▶ is the successor as far? ─▶ COMMIT

One transaction does all of it, so a process that is killed leaves the old or the new. It waits for
the names briefly, and tries again: later readers would wait behind it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple, NoReturn

import msgspec
import psycopg
from psycopg import sql

from millwheel.core.suggestion import with_suggestion
from millwheel.errors import StoreError, StoreUnavailable, UsageError
from millwheel.graph.labels import INJECTED
from millwheel.store.console.asking import UNNAMED, Actor, Asking
from millwheel.store.console.inspection import Inspection
from millwheel.store.console.outputs import output_status
from millwheel.store.console.published_names import (
    Leading,
    PublishedName,
    lead,
    other_readers,
    own_tables,
    published_names,
    quoted,
)
from millwheel.store.console.snapshot import choose, list_pipelines
from millwheel.store.console.step_names import stored_nodes
from millwheel.store.copies.catching_up import CatchUp, catch_up
from millwheel.store.copies.origins import SIGN, connected
from millwheel.store.copies.teeing import is_teed
from millwheel.store.postgres.blockers import session_text
from millwheel.store.postgres.statements import Statements, composed, text_of

BUDGET_MILLISECONDS = 40
"""Longest wait for the locks of all names in one attempt; later readers wait behind it."""

PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.05, 0.5
"""Time after the first attempt, in which waiting readers get their turn, and after any; each is
longer than the one before."""

SUDDEN_SECONDS = 5.0
"""For so long each attempt looks once whether the successor is as far as the timers that any
interval has fired, so that it has closed all windows that readers have rows of."""

PATIENCE_MILLISECONDS = 400
"""So long an attempt waits for that afterwards, while it keeps readers out: in a busy pipeline both
are never as far in the same moment. It does not wait for a successor whose slowest interval is
behind the former's slowest one."""

BEHIND = "MW001"
"""State of the error of an attempt that found the successor behind."""

Check = Callable[[psycopg.Connection[Any]], None]


class Takeover(NamedTuple):
    """The place of a pipeline, and the one that takes it."""

    pipeline: str
    successor: str
    schemas: Sequence[str] = ()
    """Only names in these; none: in all."""


class SwitchedName(msgspec.Struct, frozen=True):
    name: str
    """With its schema."""
    changes: tuple[str, ...] = ()
    """Differences of its columns that readers meet."""


class ForeseenSwitch(msgspec.Struct, frozen=True):
    """The effects of a switch, as of now."""

    pipeline: str
    successor: str
    names: tuple[SwitchedName, ...]
    staying: tuple[str, ...]
    """Views of users that read the pipeline's tables, and continue to."""
    withheld: tuple[str, ...]
    """Steps of the pipeline that write outside the store until then."""
    delivered: tuple[str, ...]
    """Steps of the successor that do so afterwards."""
    inboxes: tuple[str, ...]
    """Streams of the successor that take records from programs."""
    is_teed: bool
    """Whether it also gets the records that programs send to the pipeline."""
    behind: str
    """How far the successor is behind, in words."""
    is_behind: bool


class Switched(NamedTuple):
    foreseen: ForeseenSwitch
    at: datetime
    """By the database's clock, before the end of the transaction."""
    attempts: int
    blocked_milliseconds: float
    """Longest time in which a reader of a name may have waited."""


def foresee_switch(url: str, takeover: Takeover) -> ForeseenSwitch:
    """Nothing is changed; errors as `switch`, but for a successor that is behind."""
    with connected(url) as connection, connection.transaction():
        return _SwitchPlan.made(connection, takeover).foreseen


def switch(
    url: str,
    takeover: Takeover,
    *,
    anyway: bool = False,
    check: Check | None = None,
    wait_seconds: float = 60.0,
    actor: Actor = UNNAMED,
) -> Switched:
    """Lead all published names of a pipeline to its successor, and let only the successor write
    outside the store.

    Args:
        anyway: even if the successor is behind.
        check: raises if something stands against it, inside the transaction.
        wait_seconds: how long to try, while readers hold the names or the successor is behind.

    Raises:
        UsageError: a pipeline or a table is missing, the successor is behind, or other objects use
            a name that has to be made again.
        StoreError: this login may not do that.
        StoreUnavailable: a reader does not end.

    Nothing was changed then.
    """
    began = time.monotonic()
    deadline = began + wait_seconds
    longest, attempts = 0.0, 0
    with connected(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        while True:
            attempts += 1
            attempt = _Attempt(connection, takeover, actor)
            try:
                with connection.transaction():
                    is_patient = time.monotonic() - began >= min(SUDDEN_SECONDS, wait_seconds / 2)
                    progress = None if anyway else ProgressCheck(is_patient)
                    foreseen, at = attempt.run(check, progress)
            except psycopg.errors.InsufficientPrivilege as error:
                raise _not_allowed(takeover, error) from error
            except psycopg.Error as error:
                longest = max(longest, attempt.blocked_milliseconds)
                if not _is_passing(error):
                    raise
                if time.monotonic() >= deadline:
                    _give_up(connection, attempt, error, wait_seconds)
            else:
                longest = max(longest, attempt.blocked_milliseconds)
                return Switched(foreseen, at, attempts, longest)
            time.sleep(min(LONGEST_PAUSE_SECONDS, PAUSE_SECONDS * attempts))


class ProgressCheck(NamedTuple):
    is_patient: bool
    """Whether to wait for a successor that is a little behind, while no reader sees the names."""


class _SwitchPlan(NamedTuple):
    foreseen: ForeseenSwitch
    leading: list[tuple[PublishedName, Leading]]

    @classmethod
    def made(
        cls,
        connection: psycopg.Connection[Any],
        takeover: Takeover,
    ) -> _SwitchPlan:
        pipeline, successor, schemas = takeover
        _require_pair(connection, pipeline, successor)
        names = published_names(connection, pipeline, schemas)
        outputs = [output_status(connection, name) for name in (pipeline, successor)]
        if not names and (schemas or not any(one.steps for one in outputs)):
            raise _nothing_published(connection, takeover)
        _require_tables(connection, successor, names)
        leading = [(name, lead(connection, name, successor)) for name in names]
        _refuse_dependents(leading)
        former, new = outputs
        progress = catch_up(connection, pipeline, successor)
        foreseen = ForeseenSwitch(
            pipeline,
            successor,
            tuple(SwitchedName(name.words, made.changes) for name, made in leading),
            tuple(other_readers(connection, pipeline)),
            () if former.withholds else former.steps,
            new.steps,
            tuple(inboxes_of(connection, successor)),
            is_teed(connection, pipeline, successor),
            progress.words,
            not progress.is_complete,
        )
        return cls(foreseen, leading)


class _Attempt:
    """One attempt, inside its transaction."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        takeover: Takeover,
        actor: Actor,
    ) -> None:
        self._connection = connection
        self.takeover = takeover
        self._actor = actor
        self._began: float | None = None
        """When the names began to be locked."""
        self.plan: _SwitchPlan | None = None

    @property
    def blocked_milliseconds(self) -> float:
        return 0.0 if self._began is None else (time.monotonic() - self._began) * 1000

    def run(
        self, check: Check | None, progress: ProgressCheck | None
    ) -> tuple[ForeseenSwitch, datetime]:
        """The effects, and the time before the names are locked."""
        connection = self._connection
        pipeline, successor, _ = self.takeover
        known = list_pipelines(connection)
        for name in sorted({pipeline, successor} & {*known}):  # in one order: two may meet
            connection.execute(Statements(name).get("lock_pipeline"))
        self.plan = plan = _SwitchPlan.made(connection, self.takeover)
        foreseen = plan.foreseen
        for name, withholds in ((pipeline, True), (successor, False)):
            params = {"withholds": withholds}
            connection.execute(Statements(name).get("switch_outputs"), params)
            payload = {
                "from": pipeline,
                "to": successor,
                "names": [one.name for one in foreseen.names],
                "behind": foreseen.behind,
            }
            Asking(connection, name).note(self._actor, "switch", payload)
        for _, leading in plan.leading:
            for statement in leading.before:
                connection.execute(statement)
        if check is not None:
            check(connection)
        ((at,),) = connection.execute(text_of("clock_of_server")).fetchall()
        self._lead(plan, progress)
        return foreseen, at

    def _lead(self, plan: _SwitchPlan, progress: ProgressCheck | None) -> None:
        statements = [text for _, leading in plan.leading for text in leading.statements]
        waits = progress is not None and progress.is_patient and not plan.foreseen.is_behind
        block = composed(
            "lead_views",
            statements=sql.Literal(statements),
            budget=sql.Literal(BUDGET_MILLISECONDS),
            checks=sql.Literal(progress is not None),
            patience=sql.Literal(PATIENCE_MILLISECONDS if waits else 0),
            former_commits=sql.Identifier(self.takeover.pipeline, "latest_commits"),
            new_commits=sql.Identifier(self.takeover.successor, "latest_commits"),
        )
        text = composed("run_block", block=sql.Literal(block))
        self._began = time.monotonic()
        self._connection.execute(text)


def inboxes_of(connection: psycopg.Connection[Any], pipeline: str) -> list[str]:
    """Streams that take records from programs."""
    return sorted(
        stream.removesuffix(INJECTED)
        for node in stored_nodes(connection, pipeline).values()
        if node.get("source", {}).get("inbox")
        for stream in node["writes"]
    )


def _require_pair(connection: psycopg.Connection[Any], pipeline: str, successor: str) -> None:
    if pipeline == successor:
        raise UsageError(f"{pipeline!r} cannot follow itself: name two pipelines")
    if SIGN in successor:
        raise UsageError(
            f"{successor!r} is a savepoint, which no worker runs. Make a pipeline of it: millwheel "
            f"fork {successor.partition(SIGN)[0]} --from {successor.partition(SIGN)[2]} --as NEW"
        )
    known = list_pipelines(connection)
    for name in (pipeline, successor):
        choose(known, name)
        inspection = Inspection(connection)
        inspection.require_owners(name)
        if not inspection.labels(name):
            raise UsageError(
                f"pipeline {name!r} was never run: start its workers, with millwheel run "
                f"MODULE:PIPELINE --as {name}, and wait until it has caught up"
            )


def _nothing_published(connection: psycopg.Connection[Any], takeover: Takeover) -> UsageError:
    pipeline, successor, schemas = takeover
    where = f" in {', '.join(map(repr, schemas))}" if schemas else ""
    if published_names(connection, successor, schemas):
        return UsageError(
            f"the names{where} lead to {successor!r} already, and none leads to {pipeline!r}"
        )
    return UsageError(
        f"no name{where} leads to pipeline {pipeline!r}: millwheel publish {pipeline} --in SCHEMA"
    )


def _require_tables(
    connection: psycopg.Connection[Any], successor: str, names: Sequence[PublishedName]
) -> None:
    there = own_tables(connection, successor)
    missing = sorted({name.table for name in names} - {*there})
    if missing:
        message = (
            f"pipeline {successor!r} has no table {', '.join(map(repr, missing))}, which readers "
            f"use as {', '.join(name.words for name in names if name.table in missing)}; it has: "
            f"{', '.join(there) or 'none'}. Run code that makes it, or drop the name with "
            "millwheel unpublish"
        )
        raise UsageError(with_suggestion(message, missing[0], there))


def _refuse_dependents(leading: Sequence[tuple[PublishedName, Leading]]) -> None:
    found = [(name, made) for name, made in leading if made.in_the_way]
    if found:
        lines = [
            f"{name.words} ({'; '.join(made.changes)}): {', '.join(made.in_the_way)}"
            for name, made in found
        ]
        raise UsageError(
            "these names have other columns in the new tables and must be made again, but other "
            f"objects use them: {' | '.join(lines)}. Drop those objects, switch, and make them "
            "again; nothing was changed"
        )


def _is_passing(error: psycopg.Error) -> bool:
    """Whether another attempt may succeed."""
    passing = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)
    return isinstance(error, passing) or error.sqlstate == BEHIND


def _give_up(
    connection: psycopg.Connection[Any], attempt: _Attempt, error: psycopg.Error, seconds: float
) -> NoReturn:
    pipeline, successor, _ = attempt.takeover
    if attempt.plan is None:
        raise StoreUnavailable(
            f"a deploy or another change of {pipeline!r} or {successor!r} does not end; nothing "
            "was changed. Try again"
        ) from error
    if error.sqlstate == BEHIND:
        found: CatchUp = catch_up(connection, pipeline, successor)
        if found.is_complete:
            raise UsageError(
                f"{successor!r} is as far as the slowest interval of {pipeline!r}, but in no "
                "moment as far as the fastest, whose results readers have seen. Give it more "
                "time: --wait SECONDS; let the sources of both stand still: --drain; or let "
                "readers see less for a moment: --anyway. Nothing was changed"
            ) from error
        raise UsageError(
            f"{successor!r} is behind {pipeline!r} by {found.words}, so readers would see less "
            "than before. Let its workers run until it has caught up: millwheel reprocess "
            f"{pipeline} --as {successor} --wait; or switch with --anyway. Nothing was changed"
        ) from error
    users = _users(connection, attempt.plan)
    raise StoreUnavailable(
        f"for {seconds:.0f} s there was no moment in which no query used the names; nothing was "
        f"changed.{users} Let these end, or give the switch more time: --wait SECONDS"
    ) from error


def _users(connection: psycopg.Connection[Any], plan: _SwitchPlan) -> str:
    relations = [quoted(name.schema, name.name) for name, _ in plan.leading]
    rows = connection.execute(text_of("users_of_views"), {"relations": relations}).fetchall()
    return "".join(f"\n  {session_text(row)}" for row in rows) + ("\n" if rows else "")


def _not_allowed(takeover: Takeover, error: psycopg.Error) -> StoreError:
    pipeline, successor, _ = takeover
    return StoreError(
        f"this login may not switch from {pipeline!r} to {successor!r}: {str(error).strip()}. It "
        "takes the roles that own both schemas, their tables, and the published names. Nothing "
        "was changed"
    )
