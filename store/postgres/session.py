"""Connections with a server process of their own.

The store relies on its sessions: on their settings (an empty search path, UTC, timeouts, read-only
looks), advisory locks, prepared statements, and the process id by which a successor ends them. A
connection pooler keeps all that in its session mode only. There one client has the server process
for as long as it is connected; in transaction mode the next client gets it after each transaction.

A pooler is recognised by the process id that it announces when a client connects, which is not that
of the server process. Then the session is proven before anything relies on it:

========= ==========================================================================================
session   takes an advisory lock with a key of its own, in a first transaction
witness   is another connection; begins a transaction, and checks that it has another server
          process, which no third client has used since
session   looks, in a second transaction, whether it still has process and lock
witness   ends its transaction, and looks again
========= ==========================================================================================

While the witness holds a server process, a pooler that shares them must give the session another
one, or has given the witness its own, whichever order it takes them in. The settings are made by
``SET`` after the proof, since a pooler refuses or drops those of a connection's start, and a shared
session must not keep them. An advisory lock is held for as long as the session lasts: with process
id and start it names the session, since the process serves others later.

A pooler may change its mode while clients are connected. So each commit and each heartbeat checks
that it runs in the process of its session, and only lanes prepare statements behind a pooler.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple, Self

import msgspec
import psycopg
from psycopg import AsyncConnection

from millwheel.errors import PooledStore
from millwheel.store.postgres import arrays
from millwheel.store.postgres.statements import text_of

Settings = Mapping[str, str]
"""Values by the names of Postgres' parameters."""

NONE: Settings = {}

REFUSALS = ("startup parameter", "command-line options")
"""Errors of PgBouncer with its relatives, and of RDS Proxy, about ``options`` of the address."""

NO_TRANSACTIONS = "statement pooling mode"
"""Part of PgBouncer's error for BEGIN in statement mode."""

ANSWER_SECONDS = 10.0
"""Longest wait for the proof: all sessions of a pooler may be in use."""

RELEASES = 20
"""Attempts to release the lock of a shared session, each of which may run in another one. A lock
that stays blocks nothing: no other session takes its key."""

KEPT = ("application_name", "client_encoding")
"""Settings that libpq makes when it connects, and a pooler passes on; emptying a session undoes
them."""

SHARED = (
    "the store is reached through a connection pooler that gives one session of Postgres to "
    "several clients (transaction or statement mode): set the pooler to session mode (PgBouncer: "
    "pool_mode = session; Supabase: port 5432 in place of 6543), or give the address of Postgres "
    "itself"
)


def shared_session() -> PooledStore:
    return PooledStore(SHARED)


def refusal(error: psycopg.Error) -> PooledStore | None:
    """The error for a pooler that a session cannot use, if `error` is one."""
    text = str(error).strip()
    if NO_TRANSACTIONS in text:
        return shared_session()
    if any(words in text for words in REFUSALS):
        return PooledStore(
            "the store is reached through a connection pooler that refuses the `options` of its "
            f"address ({text}): leave them out there and in PGOPTIONS, or give the address of "
            "Postgres itself"
        )
    return None


# -- the proof ------------------------------------------------------------------------------------


class ProofStep(NamedTuple):
    """A statement for the session, or for its witness, which is connected for the first one."""

    statement: str
    parameters: Mapping[str, Any] | None = None
    by_witness: bool = False


class Proven(NamedTuple):
    """A session of its own, with its settings."""

    pid: int
    """Process id of the server process."""
    lock: int | None
    """Key of the advisory lock that the session holds; None: no pooler stands between."""

    @property
    def is_pooled(self) -> bool:
        return self.lock is not None

    def named(self, started: str) -> str:
        """The name of the session beside its process id: the process' start, and the lock."""
        return started if self.lock is None else f"{started} {self.lock}"


Proof = Generator[ProofStep, Any, Proven]
"""Takes the first row of each answer, or None."""


def prove(announced: int, given: Mapping[str, Any], settings: Settings) -> Proof:
    """Prove that a new connection has a session of its own, and make its settings.

    Args:
        announced: the process id that libpq got when it connected.
        given: the parameters that it connected with.

    Raises:
        PooledStore: other clients get the same session.
    """
    lock = secrets.randbits(63)
    asked = {"announced": announced, "lock": lock, "settings": _encoded(settings)}
    pid, at, is_ready = yield ProofStep(text_of("own_session"), asked)
    if pid == announced:
        return Proven(pid, None)
    try:
        yield ProofStep("BEGIN", by_witness=True)
        yield from _look(pid, at)
        is_same, at = yield ProofStep(text_of("same_session"), {"pid": pid, "lock": lock})
        yield ProofStep("ROLLBACK", by_witness=True)
        yield from _look(pid, at)
        if not (is_ready and is_same):
            raise shared_session()
    except (PooledStore, psycopg.Error):
        with contextlib.suppress(psycopg.Error):  # other clients use the session later
            yield ProofStep("ROLLBACK", by_witness=True)
            for _ in range(RELEASES):
                if (yield ProofStep(text_of("release_lock"), {"lock": lock})):
                    break
        raise
    yield ProofStep(text_of("empty_session"))
    kept = {name: given[name] for name in KEPT if name in given}
    asked = {"pid": pid, "lock": lock, "settings": _encoded({**kept, **settings})}
    (is_same,) = yield ProofStep(text_of("settle_session"), asked)
    if not is_same:
        raise shared_session()
    return Proven(pid, lock)


def _look(pid: int, at: str) -> Generator[ProofStep, Any, None]:
    """The witness looks at the process `pid`; the last statement of its session began `at`."""
    (is_shared,) = yield ProofStep(text_of("is_shared"), {"pid": pid, "at": at}, by_witness=True)
    if is_shared:
        raise shared_session()


def _encoded(settings: Mapping[str, Any]) -> str:
    return msgspec.json.encode(settings).decode()


def _advance(proof: Proof, answer: Any) -> ProofStep | Proven:
    """The next statement, or the end; `answer` is a row, or the error of the last statement."""
    try:
        return proof.throw(answer) if isinstance(answer, psycopg.Error) else proof.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def _no_answer() -> psycopg.OperationalError:
    return psycopg.OperationalError(
        f"there was no session of Postgres within {ANSWER_SECONDS:.0f} s: the server hangs, or all "
        "sessions of a connection pooler are in use. A worker keeps up to seven of them (with "
        "--ingest nine), and needs one more for a moment: let the pool (default_pool_size) have "
        "eight for each worker, or ten"
    )


@contextmanager
def _meant() -> Iterator[None]:
    """Raise errors of a pooler as `PooledStore`."""
    try:
        yield
    except psycopg.Error as error:
        pooled = refusal(error)
        if pooled is None:
            raise
        raise pooled from error


# -- connections ----------------------------------------------------------------------------------


def connect(
    conninfo: str, settings: Settings = NONE, *, autocommit: bool = True
) -> psycopg.Connection[Any]:
    """A connection of one thread, with its own session.

    Raises:
        psycopg.Error: the server does not answer.
        PooledStore: a connection pooler answers that shares sessions.
    """
    return proven(conninfo, settings, autocommit=autocommit)[0]


def proven(
    conninfo: str, settings: Settings = NONE, *, autocommit: bool = True
) -> tuple[psycopg.Connection[Any], Proven]:
    """Like `connect`, with the proof of the session."""
    with _meant(), contextlib.ExitStack() as made:

        def connected() -> psycopg.Connection[Any]:
            connection = psycopg.connect(conninfo, autocommit=True)
            made.callback(connection.close)
            return connection

        session, witness = connected(), None
        with _limited(session) as limited:
            proof = prove(session.info.backend_pid, session.info.get_parameters(), settings)
            found = _advance(proof, None)
            while isinstance(found, ProofStep):
                answer: Any
                try:
                    if found.by_witness and witness is None:
                        witness = connected()
                        limited.append(witness)
                    by = witness if found.by_witness and witness is not None else session
                    cursor = by.execute(found.statement, found.parameters, prepare=False)
                    answer = cursor.fetchone() if cursor.description else None
                except psycopg.Error as error:
                    answer = error
                found = _advance(proof, answer)
        if witness is not None:
            witness.close()
        session.autocommit = autocommit
        made.pop_all()
        return session, found


@contextmanager
def _limited(connection: psycopg.Connection[Any]) -> Iterator[list[psycopg.Connection[Any]]]:
    """End the wait for the answers of some connections after `ANSWER_SECONDS`: libpq has no limit
    for it."""
    waiting, late = [connection], threading.Event()

    def cut() -> None:
        late.set()
        for each in waiting:
            with (
                contextlib.suppress(OSError, psycopg.Error),
                socket.socket(fileno=os.dup(each.fileno())) as line,
            ):
                line.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(ANSWER_SECONDS, cut)
    timer.daemon = True
    timer.start()
    try:
        yield waiting
    except psycopg.Error as error:
        if late.is_set():
            raise _no_answer() from error
        raise
    finally:
        timer.cancel()


Outcome = Callable[[PooledStore | None], None]


def _ignored(pooled: PooledStore | None) -> None:
    pass


@asynccontextmanager
async def closed_on_failure(connection: AsyncConnection[Any]) -> AsyncIterator[None]:
    """Close a new connection if the block fails or is cancelled: a pool does not if its
    ``configure`` callback failed."""
    try:
        yield
    except BaseException:
        await connection.close()
        raise


class OwnSession(AsyncConnection[Any]):
    """Commits each statement, and takes packed arrays."""

    proven: Proven
    """Of a connection that `connect` has returned."""

    @classmethod
    async def connect(cls, conninfo: str = "", **kwargs: Any) -> Self:
        """Like `AsyncConnection.connect`.

        Args:
            settings: settings of the session.
            outcome: called with a `PooledStore`, or with None after any other outcome: a pool of
                connections does not pass errors on.
        """
        outcome: Outcome = kwargs.pop("outcome", _ignored)
        settings: Settings = kwargs.pop("settings", NONE)
        kwargs["autocommit"] = True
        pooled: PooledStore | None = None
        try:
            with _meant():
                connection = await super().connect(conninfo, **kwargs)
                async with closed_on_failure(connection):
                    arrays.register(connection.adapters)
                    try:
                        async with asyncio.timeout(ANSWER_SECONDS):
                            await connection._prove(conninfo, kwargs, settings)
                    except TimeoutError as error:
                        raise _no_answer() from error
        except PooledStore as error:
            pooled = error
            raise
        else:
            return connection
        finally:
            outcome(pooled)

    async def _prove(self, conninfo: str, kwargs: Mapping[str, Any], settings: Settings) -> None:
        async with contextlib.AsyncExitStack() as made:
            witness: AsyncConnection[Any] | None = None
            proof = prove(self.info.backend_pid, self.info.get_parameters(), settings)
            found = _advance(proof, None)
            while isinstance(found, ProofStep):
                answer: Any
                try:
                    if found.by_witness and witness is None:
                        witness = await AsyncConnection.connect(conninfo, **kwargs)
                        made.push_async_callback(witness.close)
                    by = witness if found.by_witness and witness is not None else self
                    cursor = await by.execute(found.statement, found.parameters, prepare=False)
                    answer = await cursor.fetchone() if cursor.description else None
                except psycopg.Error as error:
                    answer = error
                found = _advance(proof, answer)
        self.proven = found

    async def require_own(self, pid: int) -> None:
        """Check the process id that a statement has run in.

        Raises:
            PooledStore: it is not that of this session; the connection is closed.
        """
        if pid != self.proven.pid:
            await self.close()
            raise shared_session()
