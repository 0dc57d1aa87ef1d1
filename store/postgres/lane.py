"""The hot path to Postgres: one connection, one ordered chain of commits.

A commit is one transaction: the fence with the commit records, the appends, then the user's
statements and table rows, then COMMIT. The engine's rows are one statement, which is a transaction
by itself if the user has none (decision 5). A COMMIT counts only if the server answers ``COMMIT``:
for a failed transaction it answers ``ROLLBACK``, without an error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from itertools import groupby
from operator import attrgetter
from typing import Any

import msgspec
import psycopg
from psycopg import AsyncConnection, sql
from psycopg.pq import TransactionStatus

from millwheel.errors import (
    CommitUnknown,
    Fenced,
    InvariantBroken,
    MillwheelError,
    StatementError,
    StoreUnavailable,
    StoreWentBack,
    UserCodeError,
)
from millwheel.sinks import Table
from millwheel.store.port.commit import ANOTHER_CHAIN, Commit
from millwheel.store.port.requests import SettledRequest
from millwheel.store.postgres import rows
from millwheel.store.postgres.buckets import bucket_table, refuse_dropped
from millwheel.store.postgres.incarnation import ServerSession
from millwheel.store.postgres.session import OwnSession, closed_on_failure, shared_session
from millwheel.store.postgres.statements import FENCE, READ_COMMITTED, Part, Statements
from millwheel.store.postgres.table_rows import coalesced, refuse_rounding, write_rows
from millwheel.store.postgres.translation import UNDEFINED_TABLE, translate, unreached
from millwheel.store.rules.row_refusals import refusal_of_any

Parts = list[tuple[Part, dict[str, Any]]]

BY_ANOTHER = "stamp"
"""The column that the fence leaves NULL in another server process than the lane's."""

OF_OTHERS = ("26000", "42P05")
"""A prepared statement is not known, or known already: the session is that of another client."""


class PostgresLane:
    """One connection that commits in order; not for concurrent use."""

    def __init__(
        self,
        url: str,
        schema: str,
        statements: Statements,
        streams: Mapping[str, tuple[int, int]],
        begin: Callable[[OwnSession], Awaitable[ServerSession]],
        ended: Callable[[PostgresLane], Awaitable[None]],
    ) -> None:
        search_path = sql.SQL(",").join([sql.Identifier(schema), sql.Identifier("public")])
        self._url = url
        self._settings = {
            "search_path": search_path.as_string(None),
            "statement_timeout": "120s",
            "idle_in_transaction_session_timeout": "30s",
            "timezone": "UTC",
            "jit": "off",
            **READ_COMMITTED,
        }
        self._statements = statements
        self._streams = streams
        self._begin = begin
        self._ended = ended
        self._connection: AsyncConnection[Any] | None = None
        self._sent_commit = False
        self._scales: dict[str, dict[str, int]] = {}
        self._prepared: tuple[Commit, Parts] | None = None
        self.backend: tuple[int, str] | None = None

    @property
    def broken(self) -> bool:
        """The connection was lost; its server process may still be working."""
        return self._connection is not None and self._connection.broken

    async def connect(self) -> None:
        """Open the connection and note its server process.

        Raises:
            StoreUnavailable: the server does not answer, or takes no writes.
            StoreWentBack: the server is another incarnation than the worker's.
            PooledStore: a connection pooler answers that shares sessions.
        """
        self._prepared = None  # its statement names the former server process
        try:
            connection = await OwnSession.connect(self._url, settings=self._settings)
            async with closed_on_failure(connection):
                self.backend = (await self._begin(connection)).backend
        except psycopg.Error as error:
            raise unreached(error) from error
        self._connection = connection

    async def close(self) -> None:
        await self._ended(self)  # if this fails, the caller closes the lane again
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    def prepare(self, commit: Commit) -> None:
        self._prepared = commit, self._parts(commit)

    async def commit(self, commit: Commit) -> None:
        connection = self._connection
        if connection is None or connection.closed:
            raise StoreUnavailable("the lane has no connection")
        self._sent_commit = False
        try:
            await self._write(connection, commit)
        except MillwheelError:
            await self._roll_back(connection)
            raise
        except psycopg.Error as error:
            if connection.closed and self._sent_commit:
                raise CommitUnknown(
                    f"the connection was lost while a commit was on the wire: {str(error).strip()}"
                ) from error
            await self._roll_back(connection)
            if error.sqlstate == UNDEFINED_TABLE:
                if await self._is_fenced(connection, commit):
                    raise Fenced(
                        "the commit was refused: other workers have owned the interval for so long "
                        "that the bucket of the previous commit was dropped"
                    ) from error
                await refuse_dropped(connection, self._statements, commit)
            meant = _engine_error(error)
            if isinstance(meant, Fenced) and not await self._is_fenced(connection, commit):
                raise StoreWentBack(ANOTHER_CHAIN) from error
            raise meant from error

    async def _is_fenced(self, connection: AsyncConnection[Any], commit: Commit) -> bool:
        """Whether another worker has claimed an interval; asked after a commit has failed."""
        ids = [link.interval_id for link in commit.intervals]
        query = self._statements.get("sequencers")
        try:
            cursor = await connection.execute(query, {"interval_ids": ids})
            current = dict(await cursor.fetchall())
        except psycopg.Error as error:
            raise translate(error) from error
        return any(current.get(link.interval_id) != link.sequencer for link in commit.intervals)

    async def _write(self, connection: AsyncConnection[Any], commit: Commit) -> None:
        if not (commit.rows or commit.statements):
            self._sent_commit = True
            await self._append(connection, commit)
            _check_alone(connection)
            return
        async with connection.pipeline():
            await connection.execute("BEGIN", prepare=True)
            await self._append(connection, commit)
        await self._finish(connection, commit)

    async def _append(self, connection: AsyncConnection[Any], commit: Commit) -> None:
        """Run the engine's part of a commit as one statement: the fence with the commit records,
        which fails unless owner and order are right, and all other appends."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None and prepared[0] is commit:
            parts = prepared[1]
        else:
            parts = self._parts(commit)
        await connection.execute(
            self._statements.together(tuple(part for part, _ in parts)),
            {
                f"{name}_{place}": value
                for place, (_, params) in enumerate(parts)
                for name, value in params.items()
            },
            prepare=True,
        )

    def _parts(self, commit: Commit) -> Parts:
        """The statements of a commit with their parameters, by table.

        Intervals are sorted by id, as in every transaction that locks several: two orders would be
        a deadlock, which the server notices only after a second.
        """
        parts: Parts = []
        bucket, stamp, streams = commit.bucket, commit.stamp, self._streams
        backend = None if self.backend is None else self.backend[0]

        def add(statement: str, table: str, params: dict[str, Any]) -> None:
            parts.append(((statement, (("table", table),)), params))

        in_order = sorted(commit.intervals, key=attrgetter("interval_id"))
        for previous, group in groupby(in_order, key=attrgetter("previous_bucket")):
            tables = (
                ("current", bucket_table("commit_record", bucket)),
                ("previous", bucket_table("commit_record", previous)),
            )
            links = _as_json(rows.link_rows(group, stamp))
            parts.append(((FENCE, tables), {**links, "backend": backend}))
        if commit.timers:
            table = bucket_table("timer_change", bucket)
            if len(commit.timers) >= rows.ARRAY_ROWS:
                add("insert_many_timers", table, rows.timer_arrays(commit.timers, stamp))
            else:
                add("insert_timers", table, _as_json(rows.timer_rows(commit.timers, stamp)))
        if commit.stragglers:
            found = rows.straggler_rows(commit.stragglers, streams, stamp)
            add("insert_stragglers", bucket_table("straggler", bucket), _as_json(found))
        if commit.dead_letters:
            found = rows.letter_rows(commit.dead_letters)
            add("insert_dead_letters", "dead_letter", _as_json(found))
        if commit.settled:
            self._add_settled(commit.settled, parts)
        for of_seen, seen in commit.seen.items():
            if seen.numbers:
                table = bucket_table("seen_run", of_seen)
                add("insert_seen_runs", table, rows.run_arrays(seen.runs()))
            if not seen.rows:
                continue
            table = bucket_table("seen_record", of_seen)
            if len(seen.rows) >= rows.ARRAY_ROWS:
                add("insert_many_seen", table, rows.seen_arrays(seen.rows))
            else:
                add("insert_seen", table, _as_json(rows.seen_rows(seen.rows)))
        if commit.states:
            table, runs = bucket_table("state_change", bucket), commit.states
            if rows.are_many(run.values for run in runs):
                add("insert_many_states", table, rows.state_arrays(runs))
            else:
                add("insert_states", table, _as_json(rows.state_rows(runs)))
        if commit.productions:
            table, chunks = bucket_table("production", bucket), rows.chunks_of(commit.productions)
            if rows.are_many(chunk.encoded for chunk in chunks):
                add("insert_many_productions", table, rows.production_arrays(chunks, streams))
            else:
                add("insert_productions", table, _as_json(rows.production_rows(chunks, streams)))
        return parts

    @staticmethod
    def _add_settled(settled: list[SettledRequest], parts: Parts) -> None:
        parts.append((("settle_requests", ()), _as_json(rows.settled_rows(settled))))
        if failed := rows.failed_rows(settled):
            parts.append((("fail_dead_letters", ()), _as_json(failed)))
        done = [{"id": s.letter} for s in settled if s.letter is not None and s.outcome == "done"]
        if done:
            parts.append((("delete_dead_letters", ()), _as_json(done)))

    async def _finish(self, connection: AsyncConnection[Any], commit: Commit) -> None:
        """Run the user's rows and statements, each blamed for its own error; then COMMIT."""
        try:
            by_table = coalesced(commit.rows)
        except UserCodeError as error:
            raise StatementError(str(error)) from error
        for table, values in by_table:
            refuse_rounding(table, values, await self._scales_of(connection, table))
            statement = write_rows(self._statements, table)
            try:
                await self._as_user(connection, statement, values, table=table)
            except StatementError as error:
                if why := refusal_of_any(table, values):
                    raise StatementError(f"{error}: {why}") from error
                raise
        for statement, params in commit.statements:
            await self._as_user(connection, statement, params)
        self._sent_commit = True
        try:
            done = await connection.execute("COMMIT")
        except psycopg.Error as error:
            if connection.closed or not (commit.rows or commit.statements):
                raise
            raise translate(error, user="checks deferred to the commit") from error
        _check_committed(done.statusmessage)

    async def _scales_of(
        self, connection: AsyncConnection[Any], table: Table[Any]
    ) -> Mapping[str, int]:
        """Digits after the point, of columns of Decimals with a limit."""
        if not any(column.type == "numeric" for column in table.columns):
            return {}
        if table.name not in self._scales:
            name = self._statements.table(table.name).as_string(None)
            cursor = await connection.execute(
                self._statements.get("numeric_scales"), {"table": name}
            )
            self._scales[table.name] = dict(await cursor.fetchall())
        return self._scales[table.name]

    async def _as_user(
        self,
        connection: AsyncConnection[Any],
        statement: str,
        params: Any,
        *,
        table: Table[Any] | None = None,
    ) -> None:
        """`StatementError` if Postgres refused it."""
        try:
            # Prepared, because psycopg sends a statement without parameters by the simple protocol
            # otherwise, which allows several statements in one text, and with them a COMMIT of the
            # user.
            await connection.execute(statement, params or None, prepare=True)
        except psycopg.Error as error:
            raise translate(
                error, user=_named(statement, table), alive=not connection.closed
            ) from error
        except (TypeError, ValueError, OverflowError) as error:
            what = _named(statement, table)
            raise StatementError(f"{what} cannot be sent to Postgres: {error}") from error

    async def _roll_back(self, connection: AsyncConnection[Any]) -> None:
        if connection.closed:
            return
        if connection.info.transaction_status != TransactionStatus.IDLE:
            try:
                await connection.execute("ROLLBACK")
            except psycopg.Error as error:
                await connection.close()
                raise StoreUnavailable(f"the store broke off: {str(error).strip()}") from error


def _check_committed(tag: str | None) -> None:
    """The server answers COMMIT of a failed transaction with ROLLBACK, without an error."""
    if tag != "COMMIT":
        raise StoreUnavailable(f"the store answered {tag!r} to COMMIT: nothing was written")


def _check_alone(connection: AsyncConnection[Any]) -> None:
    """Check that no transaction was open before the statement, which is a transaction by itself
    only then."""
    if connection.info.transaction_status != TransactionStatus.IDLE:
        raise StoreUnavailable("the commit is part of a transaction that was left open")


def _as_json(found: list[rows.Row]) -> dict[str, Any]:
    return {"rows": msgspec.json.encode(found).decode()}


def _engine_error(error: psycopg.Error) -> MillwheelError:
    table = error.diag.table_name or ""
    if error.sqlstate in OF_OTHERS or (
        table.startswith("commit_record") and error.diag.column_name == BY_ANOTHER
    ):
        return shared_session()
    if table.startswith("commit_record") and error.sqlstate in ("23502", "23505"):
        return Fenced("the commit was refused: another owner has claimed the interval")
    if table.startswith(("seen_record", "seen_run")) and error.sqlstate in ("23502", "23505"):
        return InvariantBroken(f"a record that was committed before was processed again: {error}")
    if table.startswith(("production", "straggler")) and error.sqlstate in ("23502", "23505"):
        return InvariantBroken(f"a production was written before: {error}")
    if error.sqlstate == UNDEFINED_TABLE:
        return InvariantBroken(f"a bucket that is still needed is gone: {str(error).strip()}")
    return translate(error)


def _named(statement: str, table: Table[Any] | None) -> str:
    return f"rows for table {table.name!r}" if table is not None else f"the statement {statement!r}"
