"""The database of a simulated cluster: the store in memory, behind a server with sessions and
locks.

What a worker asks for is done here, by the server's own tasks and in its own time, whatever has
become of the worker meanwhile. As in Postgres (`millwheel.store.postgres.lane`,
`millwheel.store.postgres.placement`):

* A commit passes the fence, holds its intervals by share locks, and takes effect at its COMMIT.
* A claim, release, cut or wish waits for these locks for half a second; then the sessions of those
  who are in the way, and may be, are ended: their commits never were.
* A claim raises the sequencers first, and reads later, in one snapshot (I4).
* A server that crashes may come back as it was some time before; all its sessions are ended then,
  and what it was about to do never is.
* A session whose connection is gone ends as soon as the server notices, or when it has said nothing
  for 30 s within a transaction.

Every effect is told to a `Watch` in the moment in which it happens, in the order of effects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from random import Random
from typing import Any

from millwheel.errors import InvariantBroken, MillwheelError, StoreUnavailable
from millwheel.store.memory import MemoryStore
from millwheel.store.memory import lane as memory_lane
from millwheel.store.memory.store import Saved
from millwheel.store.port.buckets import Bucket
from millwheel.store.port.claims import Claim
from millwheel.store.port.commit import Commit
from millwheel.store.port.deploy import Deployment
from millwheel.store.port.placement import Placement, PlacementChange
from millwheel.store.port.states import TIMERS_A_PAGE
from millwheel.testing.virtual_loop import Machine
from tests.sim.watch import Watch

LOCK_SECONDS = 0.5
ATTEMPTS = 20
IDLE_IN_TRANSACTION_SECONDS = 30.0


class Database(MemoryStore):
    """The tables. Nothing in it waits: the server decides when what is done."""

    async def _called(self, name: str) -> None:
        pass

    def placed(self) -> Placement:
        """Who owns what, now."""
        return self.placement()

    def copied(self) -> Database:
        """All that is stored, as one snapshot: what a backup would bring back elsewhere (I10)."""
        copy = Database(self.tables.pipeline, clock=self._clock)
        self.copy_into(copy)
        return copy

    def copy_into(self, other: Database) -> None:
        """Let another database hold what this one holds, and share none of it."""
        other.come_back_as(self.saved())


@dataclass
class Trouble:
    """What may go wrong with a call, each with its probability; times in seconds."""

    lost: float = 0.0
    """The connection breaks before the server hears of the call."""
    torn: float = 0.0
    """The connection breaks, and the server does what it was asked to, sooner or later."""
    slow: float = 0.0
    """It takes up to `slow_seconds`."""
    slow_seconds: float = 1.0
    usual_seconds: float = 0.004


@dataclass(eq=False)
class Call:
    """Something that a worker asked for."""

    what: str
    machine: Machine | None
    work: Callable[[], Awaitable[Any]]
    answer: asyncio.Future[Any]
    lost: Callable[[str], MillwheelError]
    """What the caller is told if the connection breaks."""
    arrived: bool = False
    dropped: bool = False


@dataclass(eq=False)
class Session:
    """One connection of a lane, as the server sees it."""

    number: int
    owner: str
    machine: Machine | None
    ended: bool = False
    writing: Commit | None = None
    """The transaction in hand: it has passed the fence."""
    finishing: bool = False
    """Its COMMIT has come."""
    held: list[int] = field(default_factory=list)
    sent_at: float = 0.0
    """When the last commit was sent, by virtual time."""


class Server:
    """The database server.

    Args:
        chance: draws times and troubles; None: everything happens at once.
    """

    def __init__(
        self, database: Database, chance: Random | None = None, watch: Watch | None = None
    ) -> None:
        self.database = database
        self.trouble = Trouble()
        self.watch = watch or Watch()
        self.away = False
        self._chance = chance
        self._context = copy_context()
        self._loop = asyncio.get_running_loop()
        self._calls: dict[Call, None] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._sessions: dict[int, Session] = {}
        self._locks: dict[int, dict[Session, None]] = {}
        self._freed = asyncio.Event()
        self._stalled: dict[Machine, list[Call]] = {}
        self.muted: set[Machine | None] = set()
        """Machines whose heartbeats do not arrive; all else does."""
        self._numbers = 0

    # -- calls --------------------------------------------------------------------

    async def call(
        self,
        what: str,
        work: Callable[[], Awaitable[Any]],
        machine: Machine | None = None,
        lost: Callable[[str], MillwheelError] = StoreUnavailable,
    ) -> Any:
        """Have something done, and wait for the answer; called by a worker."""
        answer: asyncio.Future[Any] = self._loop.create_future()
        call = Call(what, machine, work, answer, lost)
        if self._chance is None:
            self._soon(self._arrive, call)
            return await answer
        chance, trouble = self._chance, self.trouble
        fate = chance.random()
        if self.away:
            self._later(chance.random() * 0.1, self._break, call, "nobody answers there")
            return await answer
        self._calls[call] = None
        if fate < trouble.lost or (what == "heartbeat" and machine in self.muted):
            call.dropped = True
            self._later(chance.random() * 0.2, self._break, call, "the connection broke")
        elif fate < trouble.lost + trouble.torn:
            self._later(chance.random() * 0.4, self._break, call, "the connection broke")
        if not call.dropped:
            self._later(self._moment(), self._arrive, call)
        return await answer

    def _moment(self) -> float:
        """How long something takes."""
        if self._chance is None:
            return 0.0
        chance, trouble = self._chance, self.trouble
        if chance.random() < trouble.slow:
            return chance.random() * trouble.slow_seconds
        return chance.random() * trouble.usual_seconds

    def pause(self) -> float:
        """How long lies between two transactions: mostly little, now and then much."""
        return 0.0 if self._chance is None else 0.5 * self._chance.random() ** 4

    def _later(self, seconds: float, callback: Callable[..., object], *args: Any) -> None:
        """Do something by the server, later."""
        self._loop.call_later(seconds, callback, *args, context=self._context.copy())

    def _soon(self, callback: Callable[..., object], *args: Any) -> None:
        self._loop.call_soon(callback, *args, context=self._context.copy())

    @property
    def is_writing(self) -> bool:
        """Whether a transaction stands open, and holds its locks."""
        return any(session.writing is not None for session in self._sessions.values())

    def stall(self, machine: Machine) -> None:
        """Nothing of a machine arrives, and nobody is told; what it sends waits on the way."""
        self._stalled.setdefault(machine, [])

    def let_through(self, machine: Machine) -> None:
        """What waited arrives, in its order."""
        for call in self._stalled.pop(machine, ()):
            self._soon(self._arrive, call)

    def _arrive(self, call: Call) -> None:
        if call.dropped:
            return
        if call.machine is not None and call.machine in self._stalled:
            self._stalled[call.machine].append(call)
            return
        call.arrived = True
        serving = self._loop.create_task(self._serve(call), context=self._context.copy())
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)

    async def _serve(self, call: Call) -> None:
        result, error = None, None
        try:
            result = await call.work()
        except MillwheelError as failure:
            if isinstance(failure, InvariantBroken):
                self.watch.broken(call.what, failure)
            error = failure
        except asyncio.CancelledError:
            return  # the server has crashed
        except BaseException as failure:
            self.watch.fail(failure)
            raise
        if self._chance is None:
            self._reply(call, result, error)
        else:
            self._later(self._moment(), self._reply, call, result, error)

    def _reply(self, call: Call, result: Any, error: MillwheelError | None) -> None:
        self._calls.pop(call, None)
        if call.answer.done():
            return  # it was given up, or the connection broke
        if error is None:
            call.answer.set_result(result)
        else:
            call.answer.set_exception(error)

    def _break(self, call: Call, why: str) -> None:
        """The caller is told that the connection is lost; what arrived goes on."""
        self._calls.pop(call, None)
        if not call.answer.done():
            self.watch.note("server", f"{call.what}: {why}")
            call.answer.set_exception(call.lost(why))

    # -- what becomes of machines and of the server ---------------------------------

    def gone(self, machine: Machine, worker: str, *, loudly: bool) -> None:
        """A machine has crashed: of what it has on the wire some comes, and some does not.

        Args:
            loudly: its connections are closed, and the server sees it soon.
        """
        assert self._chance is not None
        for call in list(self._calls):
            if call.machine is machine and not call.arrived and self._chance.random() < 0.5:
                call.dropped = True
        if loudly:
            for session in list(self._sessions.values()):
                if session.machine is machine:
                    self._later(self._chance.random() * 0.05, self.end, session)
            self._later(self._chance.random() * 0.2, self.database.end_liveness_session, worker)

    def go_away(self) -> None:
        """The server ends: open transactions never were, and nobody gets an answer."""
        self.away = True
        self.database.restart_server()
        for session in list(self._sessions.values()):
            self.end(session)
        for call in list(self._calls):
            call.dropped = True
            self._break(call, "the server went away")

    def come_back(self) -> None:
        """It is there again."""
        self.away = False

    def crash(self, saved: Saved) -> None:
        """The server ends, and will come back as it was when that was saved."""
        for serving in self._serving:
            serving.cancel()
        self.go_away()
        self.database.come_back_as(saved)

    # -- sessions -----------------------------------------------------------------

    def open(self, owner: str, machine: Machine | None) -> Session:
        self._numbers += 1
        session = Session(self._numbers, owner, machine)
        self._sessions[session.number] = session
        return session

    def end(self, session: Session) -> None:
        """End a session; a transaction in hand never was."""
        session.ended = True
        self._sessions.pop(session.number, None)
        self._let_go(session)

    def hang_up(self, session: Session) -> None:
        """The other end has closed the connection; the session ends when that arrives."""
        if self._chance is None:
            self.end(session)
        else:
            self._later(self._moment(), self.end, session)

    def _let_go(self, session: Session) -> None:
        session.writing, session.finishing = None, False
        for id_ in session.held:
            self._locks[id_].pop(session, None)
        session.held = []
        self._freed.set()
        self._freed = asyncio.Event()

    async def write(self, session: Session, commit: Commit) -> None:
        """BEGIN, the fence, what is appended: all of a commit but its end."""
        if session.ended:
            raise StoreUnavailable("the session was ended")
        self._check_fence(commit)
        session.writing = commit
        for link in commit.intervals:
            self._locks.setdefault(link.interval_id, {})[session] = None
            session.held.append(link.interval_id)
        if self._chance is not None:
            self._later(IDLE_IN_TRANSACTION_SECONDS, self._end_idle, session, commit)

    def _check_fence(self, commit: Commit) -> None:
        memory_lane.check_fence(commit, self.database.tables)

    def _end_idle(self, session: Session, commit: Commit) -> None:
        if session.writing is commit and not session.finishing:
            self.end(session)

    async def finish(self, session: Session, database: Database) -> None:
        """COMMIT: the rest of a commit, and its effect."""
        commit = session.writing
        if session.ended or commit is None:
            raise StoreUnavailable("the session was ended")
        session.finishing = True
        await asyncio.sleep(self._moment())
        if session.writing is not commit:
            raise StoreUnavailable("the session was ended")
        try:
            database.apply(commit)
            self.watch.committed(session.owner, commit, session.sent_at)
        finally:
            self._let_go(session)

    # -- changes of who owns what ---------------------------------------------------

    async def _unlocked(self, ids: Sequence[int]) -> None:
        while any(self._locks.get(id_) for id_ in ids):
            await self._freed.wait()

    async def clear_the_way(
        self, ids: Sequence[int], worker: str | None, *, also_live: bool = False
    ) -> None:
        """Wait for the commits that hold these intervals, or end their sessions."""
        for _ in range(ATTEMPTS):
            try:
                async with asyncio.timeout(LOCK_SECONDS):
                    await self._unlocked(ids)
            except TimeoutError:
                self._end_those_in_the_way(ids, worker, also_live=also_live)
            else:
                return
        raise StoreUnavailable(f"intervals {list(ids)} are locked by a session")

    def _end_those_in_the_way(
        self, ids: Sequence[int], worker: str | None, *, also_live: bool
    ) -> None:
        rows = {row.id: row for row in self.database.placed().intervals}
        owners = {
            row.owner
            for id_ in ids
            if (row := rows.get(id_)) is not None
            and row.owner not in (None, worker)
            and (also_live or row.lease_over)
        }
        for session in list(self._sessions.values()):
            if session.owner in owners:
                self.watch.note("server", f"ends session {session.number} of {session.owner[:8]}")
                self.end(session)

    async def deploy(self, database: Database, *args: Any, **options: Any) -> Deployment:
        deployment = await database.deploy(*args, **options)
        self.watch.deployed()
        return deployment

    async def claim(
        self,
        database: Database,
        worker: str,
        interval_ids: list[int],
        *,
        again: bool = False,
        timers: int = TIMERS_A_PAGE,
        sequencers: Mapping[int, int] | None = None,
    ) -> list[Claim]:
        await self.clear_the_way(interval_ids, worker, also_live=sequencers is None)
        taken = database.raise_sequencers(worker, interval_ids, again=again, sequencers=sequencers)
        self.watch.claimed(worker, *taken)
        await asyncio.sleep(self.pause())
        claims = database.read_claims(taken, timers)
        self.watch.took(worker, claims)
        return claims

    async def release(
        self, database: Database, worker: str, sequencers: Mapping[int, int]
    ) -> list[int]:
        await self.clear_the_way(list(sequencers), None)
        released = await database.release(worker, sequencers)
        self.watch.released(worker, released)
        return released

    async def wish(
        self, database: Database, changes: Sequence[PlacementChange], term: int | None = None
    ) -> list[int]:
        await self.clear_the_way([change.interval_id for change in changes], None)
        return await database.wish(changes, term)

    async def split(
        self, database: Database, interval_id: int, sequencer: int, at: int, *, reason: str = ""
    ) -> int:
        await self.clear_the_way([interval_id], None)
        made = await database.split(interval_id, sequencer, at, reason=reason)
        self.watch.split(interval_id, made)
        return made

    async def merge(
        self,
        database: Database,
        lower_id: int,
        upper_id: int,
        sequencers: Mapping[int, int],
        *,
        reason: str = "",
    ) -> int:
        await self.clear_the_way([lower_id, upper_id], None)
        made = await database.merge(lower_id, upper_id, sequencers, reason=reason)
        self.watch.merged(lower_id, upper_id, made)
        return made

    async def fold(
        self, database: Database, interval_id: int, sequencer: int, after: int, through: int
    ) -> bool:
        await self._unlocked([interval_id])
        folded = await database.fold(interval_id, sequencer, after, through)
        if folded:
            self.watch.folded(interval_id, through)
        return folded

    async def retire_logs(self, database: Database, logs: list[int]) -> None:
        await database.retire_logs(logs)
        self.watch.retired(logs)

    async def drop_bucket(self, database: Database, bucket: Bucket) -> bool:
        for session in self._sessions.values():
            if session.writing is not None and bucket.id in touched(session.writing):
                return False  # its tables are locked
        there = bucket.id in database.tables.buckets
        dropped = await database.drop_bucket(bucket)
        if dropped and there:
            self.watch.dropped(bucket)
        return dropped


def touched(commit: Commit) -> set[int]:
    """The buckets whose tables a commit uses."""
    return {commit.bucket, *commit.seen, *(link.previous_bucket for link in commit.intervals)}
