"""The incarnation of the server, which every connection of the engine reads before it is used
(decision 40).

A server may come back without its newest commits. Postgres empties the unlogged table `incarnation`
in every crash recovery and when a standby is promoted; the first session afterwards inserts a new
id. A cold copy of a data directory keeps that id, so the start of the postmaster is the second part
of the incarnation; a restored dump keeps it as well, so the oid of the table is the third.

Aurora empties no unlogged table. So an id that was drawn before the last crash recovery is replaced
too, and each worker compares the identifier and the timeline of the server, where its login may
read them (decision 84).

A crash of the server ends its connections, so one look, at the start of each, is enough.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import psycopg
import structlog

from millwheel.errors import StoreUnavailable, StoreWentBack
from millwheel.store.postgres.session import OwnSession
from millwheel.store.postgres.statements import Statements, text_of

TOO_WEAK = frozenset(("off", "local", "remote_write"))
"""Values of `synchronous_commit` under which a crash may undo acknowledged commits."""

A_STANDBY = (
    "it is a standby, which takes no writes: give the address of the primary, or of all servers "
    "with target_session_attrs=read-write"
)

ATTEMPTS = 20
"""Longest series of crash recoveries while a session begins."""

REFUSALS = (psycopg.errors.InsufficientPrivilege, psycopg.errors.CantChangeRuntimeParam)

log = structlog.get_logger("millwheel.store")


class ServerSession(NamedTuple):
    backend: tuple[int, str]
    """Process id and start of the server process; behind a pooler also the session's lock."""
    incarnation: str
    synchronous_commit: str
    fsync: str
    control: str | None = None
    """System identifier and timeline; None: the login may not read them, or the server has none."""


class Incarnations:
    """The incarnation that a worker works with, and another one if the worker has met it."""

    def __init__(self) -> None:
        self._known: str | None = None
        self._met: str | None = None
        self._control: str | None = None
        self._met_control: str | None = None

    def meet(self, session: ServerSession) -> None:
        found, control = session.incarnation, session.control
        if self._known is None:
            self._known = found
        elif found != self._known or (self._control and control and control != self._control):
            self._met, self._met_control = found, control
            return
        self._control = self._control or control

    def check(self, found: str | None) -> None:
        """Check that a connection to incarnation `found` may be used.

        Raises:
            StoreWentBack: the worker has met another incarnation than its own.
            StoreUnavailable: the connection is older than the worker's incarnation.
        """
        if self._met is not None:
            raise StoreWentBack(
                "the database server has restarted, was promoted from a standby, or was restored: "
                "its newest commits may be lost"
            )
        if found != self._known:
            raise StoreUnavailable("the connection leads to an earlier incarnation of the server")

    def begin_again(self) -> bool:
        """Work with the incarnation that was met last; returns whether that is another one."""
        if self._met is None:
            return False
        self._known, self._control = self._met, self._met_control
        self._met = self._met_control = None
        return True

    @property
    def known(self) -> str:
        """Only after the first connection."""
        assert self._known is not None
        return self._known


class Warnings:
    """About the server's settings, each logged once."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def look_at(self, session: ServerSession) -> None:
        if session.synchronous_commit in TOO_WEAK:
            self._warn(
                "commits_do_not_wait",
                synchronous_commit=session.synchronous_commit,
                what_it_means=(
                    "a crash of the database server takes back its newest commits; the workers "
                    "notice that and start over, and what they sent elsewhere may be sent twice"
                ),
                what_to_do=(
                    "allow the role to SET synchronous_commit = on, or set it for the "
                    "role or the database"
                ),
            )
        if session.fsync != "on":
            self._warn(
                "fsync_is_off",
                what_it_means="a crash of the database's machine may destroy the whole database",
                what_to_do=(
                    "set fsync = on in postgresql.conf, unless the database can be thrown away"
                ),
            )

    def _warn(self, event: str, **details: str) -> None:
        if event not in self._given:
            self._given.add(event)
            log.warning(event, **details)


async def begin_session(connection: OwnSession, statements: Statements) -> ServerSession:
    """Set the session's durability, and read which incarnation of the server it leads to.

    Raises:
        psycopg.Error: the server does not answer, or takes no writes (a standby).
        PooledStore: a connection pooler has given the session to another client.
    """
    with contextlib.suppress(*REFUSALS):  # the next statement reads the actual setting
        await connection.execute(statements.get("raise_durability"))
    for _ in range(ATTEMPTS):
        try:
            cursor = await connection.execute(statements.get("begin_session"))
        except psycopg.errors.FeatureNotSupported as error:  # it has no unlogged tables
            raise psycopg.OperationalError(A_STANDBY) from error
        row = await cursor.fetchone()
        assert row is not None, "a session sees itself"
        pid, started, is_standby, incarnation, synchronous_commit, fsync, may_read = row
        await connection.require_own(pid)
        if is_standby:  # of a server on which unlogged tables are like all others
            raise psycopg.OperationalError(A_STANDBY)
        if incarnation is not None:
            backend = pid, connection.proven.named(started)
            control = await _read_control(connection) if may_read else None
            return ServerSession(backend, incarnation, synchronous_commit, fsync, control)
        await connection.execute(statements.get("begin_incarnation"))
    raise psycopg.OperationalError(
        f"the server recovers from a crash again and again: the row of its incarnation, drawn "
        f"{ATTEMPTS} times, is older than its last recovery each time. Look at the server's log"
    )


async def _read_control(connection: OwnSession) -> str | None:
    """System identifier and timeline of the server, if it has them."""
    try:
        row = await (await connection.execute(text_of("read_control"))).fetchone()
    except psycopg.Error:
        if connection.closed:
            raise
        return None
    return None if row is None else str(row[0])
