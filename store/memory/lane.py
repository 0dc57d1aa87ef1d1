from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from millwheel.errors import (
    BucketGone,
    CommitUnknown,
    Fenced,
    InvariantBroken,
    StatementError,
    StoreUnavailable,
    StoreWentBack,
)
from millwheel.store.memory.faults import Faults
from millwheel.store.memory.requests import settle
from millwheel.store.memory.sink_tables import TableSinks
from millwheel.store.memory.tables import BucketTables, CommitRow, Tables, changes_of
from millwheel.store.port.commit import ANOTHER_CHAIN, Commit, IntervalCommit
from millwheel.store.port.records import StoredProduction
from millwheel.store.rules.row_refusals import refusal

Refuse = Callable[[str, Sequence[Any]], str | None]


class MemoryLane:
    """One ordered chain of commits; not for concurrent use.

    `apply` is the server's part of a commit; `lives` whether the server has not restarted since the
    lane was opened.
    """

    def __init__(
        self, faults: Faults, apply: Callable[[Commit], None], lives: Callable[[], bool]
    ) -> None:
        self._faults = faults
        self._apply = apply
        self._lives = lives
        self._connected = True
        self._busy = False

    def prepare(self, commit: Commit) -> None: ...

    async def commit(self, commit: Commit) -> None:
        if not self._connected:
            raise StoreUnavailable("the lane has no connection")
        assert not self._busy, "a lane takes one commit after the other"
        self._busy = True
        faults = self._faults
        try:
            await asyncio.sleep(0)
            if faults.before_call is not None:
                await faults.before_call("commit")
            if faults.before_commit is not None:
                await faults.before_commit(commit)
            self._apply_if_it_lives(commit)
            if faults.after_commit is not None:
                await faults.after_commit(commit)
            await asyncio.sleep(0)
        except CommitUnknown:
            self._connected = False
            raise
        finally:
            self._busy = False

    def _apply_if_it_lives(self, commit: Commit) -> None:
        if not self._lives():
            raise CommitUnknown("the connection was lost while a commit was on the wire")
        self._apply(commit)

    async def close(self) -> None:
        await asyncio.sleep(0)
        self._connected = False


def apply(
    commit: Commit,
    tables: Tables,
    sinks: TableSinks,
    versions: Mapping[str, int],
    refuse: Refuse | None,
    run_statements: Callable[[Sequence[tuple[str, Sequence[Any]]]], None],
) -> None:
    """Apply a commit atomically.

    Args:
        versions: versions of the streams in this worker's code.
        refuse: gives the reason to refuse a statement or a row; None: accept it.
        run_statements: runs the user's statements, all or none: the last step that may fail.
    """
    check_fence(commit, tables)
    here = tables.bucket(commit.bucket)
    _check_appends(commit, tables, here)
    _check_users(commit, sinks, refuse or (lambda what, values: None))
    run_statements(commit.statements)
    for link in commit.intervals:
        row = CommitRow(replace(link), commit.stamp)
        here.commits.setdefault(link.interval_id, []).append(row)
    for bucket, seen in commit.seen.items():
        noted = tables.bucket(bucket)
        noted.seen.update(seen.rows)
        for name, parts in seen.numbers.items():
            noted.numbers.setdefault(name, set()).update(*parts)
    for run in commit.states:
        here.states.setdefault(run.interval_id, []).extend(changes_of(run))
    for timer in commit.timers:
        here.timers.setdefault(timer.interval_id, []).append(timer)
    for d in commit.productions:
        here.productions.setdefault(d.log, {})[d.seq] = StoredProduction(
            d.seq, d.stream, d.receiver, d.slot, d.key_text, d.encoded,
            versions[d.stream], d.micros, d.hold, d.stamp, d.stamp,
        )  # fmt: skip
    for d in commit.stragglers:
        here.productions.setdefault(d.log, {})[d.seq] = StoredProduction(
            d.seq, d.stream, d.receiver, d.slot, d.key_text, d.encoded,
            versions[d.stream], d.micros, d.hold, commit.stamp, d.stamp, d.id, d.origin,
        )  # fmt: skip
    for letter in commit.dead_letters:
        if letter.key is not None or all(
            letter.record_id != kept.record_id for kept in tables.dead_letters if kept.key is None
        ):
            tables.dead_letters.append(letter)
    settle(tables, commit.settled)
    for table, values in commit.rows:
        sinks.write(table, values)
    tables.statements += commit.statements


def check_fence(commit: Commit, tables: Tables) -> None:
    """`Fenced` if another worker owns an interval, `StoreWentBack` if the previous commit is
    missing."""
    for link in commit.intervals:
        if not tables.is_current(link.interval_id, link.sequencer):
            raise Fenced("the commit was refused: another owner has claimed the interval")
    if not all(_follows(link, commit.bucket, tables) for link in commit.intervals):
        raise StoreWentBack(ANOTHER_CHAIN)


def _follows(link: IntervalCommit, bucket: int, tables: Tables) -> bool:
    previous = tables.bucket(link.previous_bucket).commits.get(link.interval_id)
    here = tables.bucket(bucket).commits.get(link.interval_id)
    return (
        previous is not None
        and previous[-1].link.n == link.n - 1
        and (here is None or here[-1].link.n < link.n)
    )


def _check_appends(commit: Commit, tables: Tables, here: BucketTables) -> None:
    for bucket, seen in commit.seen.items():
        if bucket not in tables.buckets and bucket < max(tables.buckets):
            raise BucketGone(
                f"bucket {bucket}, in which the commit notes records as seen, was dropped"
            )
        known, rows = tables.bucket(bucket), {*seen.rows}
        twice = len(rows) < len(seen.rows) or not known.seen.isdisjoint(rows)
        for run in seen.runs():
            stored = known.numbers.get((run.computation, run.log), set())
            twice = twice or not stored.isdisjoint(run.numbers)
        if twice:
            raise InvariantBroken("a record that was committed before was processed again")
    written: set[tuple[int, int]] = set()
    for production in (*commit.productions, *commit.stragglers):
        name = production.log, production.seq
        if name in written or production.seq in here.productions.get(production.log, ()):
            raise InvariantBroken(f"a production was written before: log and number {name}")
        written.add(name)


def _check_users(commit: Commit, sinks: TableSinks, refuse: Refuse) -> None:
    for table, values in commit.rows:
        if table.name not in sinks:
            raise StatementError(f"there is no table {table.name!r}")
        if answer := refuse(table.name, values) or refusal(table, values):
            raise StatementError(f"rows for table {table.name!r} were refused: {answer}")
    for statement, params in commit.statements:
        if answer := refuse(statement, params):
            raise StatementError(f"the statement {statement!r} was refused: {answer}")
