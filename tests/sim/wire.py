"""The store as one worker has it: every call goes over the wire to the `Server`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

from millwheel.errors import CommitUnknown, StoreUnavailable, StoreWentBack
from millwheel.store.memory.records import PAGE_ROWS
from millwheel.store.port import Store
from millwheel.store.port.commit import Commit
from millwheel.store.port.records import StoredProduction
from millwheel.store.port.workers import OtherWorker
from millwheel.testing.virtual_loop import Machine
from tests.sim.server import Database, Server, Session

BY_THE_SERVER = frozenset(
    ("deploy", "claim", "release", "wish", "split", "merge", "fold", "drop_bucket", "retire_logs")
)
"""What waits for locks, or is worth being told of; all else is done by the database at once."""


class Wire:
    """A `millwheel.store.port.Store` on a server that may be slow, away, or out of reach."""

    def __init__(self, server: Server, database: Database, machine: Machine | None = None) -> None:
        self._server = server
        self._database = database
        self._machine = machine
        self._worker = ""
        self._known: int | None = None
        """The incarnation of the server that this worker met first."""
        self._starts = 0
        """How often this worker has started over."""

    @property
    def is_current(self) -> bool:
        """Whether the server is the one that this worker knows."""
        return self._known in (None, self._database.tables.incarnation)

    def _check(self) -> None:
        """What a connection does when it is made (`millwheel.store.postgres.incarnation`)."""
        if self._known is None:
            self._known = self._database.tables.incarnation
        elif not self.is_current:
            raise StoreWentBack("the server has lost commits")

    async def incarnation(self) -> str:
        if self._server.away:
            raise StoreUnavailable("nobody answers there")
        self._check()
        return str(self._known)

    def begin_again(self) -> None:
        self._known = None
        self._starts += 1

    async def _call(self, what: str, work: Callable[[], Awaitable[Any]]) -> Any:
        """Have something done by the server that this worker knows, and by no other.

        A worker that starts over closes its connections: a call from before, which it does not wait
        for any more, has no effect if it arrives later.
        """
        starts = self._starts

        async def checked() -> Any:
            if starts != self._starts:
                raise StoreUnavailable("the connection was closed")
            self._check()
            return await work()

        return await self._server.call(what, checked, self._machine)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        """Any other method of the store: done over there."""
        server, database = self._server, self._database

        def remote(*args: Any, **options: Any) -> Awaitable[Any]:
            def work() -> Awaitable[Any]:
                if name in BY_THE_SERVER:
                    return cast(Awaitable[Any], getattr(server, name)(database, *args, **options))
                return cast(Awaitable[Any], getattr(database, name)(*args, **options))

            return self._call(name, work)

        return remote

    async def register_worker(self, worker: str, lease_seconds: float, **options: Any) -> None:
        self._worker = worker
        await self._call(
            "register_worker",
            lambda: self._database.register_worker(worker, lease_seconds, **options),
        )

    def is_dead(self, other: OtherWorker) -> bool:
        return self._database.is_dead(other)

    async def read_productions(self, log: int, first: int) -> AsyncIterator[StoredProduction]:
        async def page(first: int) -> list[StoredProduction]:
            rows = sorted(
                (row for row in self._database.tables.productions(log) if row.seq >= first),
                key=lambda row: row.seq,
            )
            return [replace(row) for row in rows[:PAGE_ROWS]]

        while True:
            rows = await self._call("read_productions", partial(page, first))
            for row in rows:
                yield row
            if len(rows) < PAGE_ROWS:
                return
            first = rows[-1].seq + 1

    async def open_lane(self) -> LaneWire:
        async def opened() -> Session:
            return self._server.open(self._worker, self._machine)

        session = await self._call("open_lane", opened)
        return LaneWire(self._server, self._database, session)

    async def close(self) -> None:
        await self._database.close()


class LaneWire:
    """A `millwheel.store.port.commit.StoreLane`: the worker's end of a session.

    A commit with something of the user's in it goes in two trips, as in
    `millwheel.store.postgres.lane`: between them it stands in the server, and holds its intervals.
    """

    def __init__(self, server: Server, database: Database, session: Session) -> None:
        self._server = server
        self._database = database
        self._session: Session | None = session
        self._broken = False

    def prepare(self, commit: Commit) -> None: ...

    async def commit(self, commit: Commit) -> None:
        session = self._session
        if session is None or self._broken:
            raise StoreUnavailable("the lane has no connection")
        session.sent_at = asyncio.get_running_loop().time()
        if commit.rows or commit.statements:
            await self._trip("write", session, lambda: self._server.write(session, commit))
            await self._trip("finish", session, lambda: self._finish(session), CommitUnknown)
        else:
            await self._trip(
                "commit", session, lambda: self._write_and_finish(session, commit), CommitUnknown
            )

    async def _trip(
        self,
        what: str,
        session: Session,
        work: Callable[[], Awaitable[None]],
        lost: type[StoreUnavailable] | type[CommitUnknown] = StoreUnavailable,
    ) -> None:
        def broke(why: str) -> StoreUnavailable | CommitUnknown:
            self._broken = True
            return lost(why)

        try:
            await self._server.call(what, work, session.machine, broke)
        except StoreUnavailable as error:
            if session.ended:  # by the server: the connection is seen to be closed
                raise broke(str(error)) from error
            raise

    async def _finish(self, session: Session) -> None:
        await self._server.finish(session, self._database)

    async def _write_and_finish(self, session: Session, commit: Commit) -> None:
        await self._server.write(session, commit)
        await self._finish(session)

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is None:
            return

        async def ended() -> None:
            self._server.end(session)

        if self._broken:
            await self._server.call("end_backends", ended, session.machine)
        else:
            self._server.hang_up(session)


def store(server: Server, database: Database, machine: Machine | None = None) -> Store:
    """The store as one worker has it."""
    return cast(Store, Wire(server, database, machine))
