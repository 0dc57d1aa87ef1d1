"""Ownership of intervals in Postgres: claims, releases, wishes, splits and merges (decision 22).

Every change is a compare-and-set on the sequencer that was read with the placement: the second of
two concurrent changes finds another sequencer and changes nothing.

    free       no owner, or an owner with an expired lease: any claim with its sequencer gets it
    held       an owner with a valid lease: only the owner releases it
    released   free, drained and folded: it may be claimed, split or merged

A change locks the interval's row, on which each commit of the owner holds a share lock. A live
owner releases that lock within one commit; a stopped one never does. So a change waits for at most
`LOCK_TIMEOUT`. Then it ends the server processes of the owners that hold exactly these intervals
under an expired lease, and tries again (I4).
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

import msgspec
import psycopg
from psycopg import AsyncConnection, AsyncCursor

from millwheel.errors import Fenced, PlacementRefused, StoreUnavailable
from millwheel.store.port.placement import (
    KEEP_EVENTS,
    FoundPartition,
    Lapse,
    MergeWish,
    PlacedInterval,
    PlacedWorker,
    Placement,
    PlacementChange,
    SplitWish,
    Unpin,
    Wish,
)
from millwheel.store.postgres.buckets import newest_commit_table
from millwheel.store.postgres.connections import Subject
from millwheel.store.postgres.translation import translate
from millwheel.store.rules.interval_history import (
    IntervalHistory,
    merged,
    partition,
    refuse,
    upper_part,
)

LOCK_TIMEOUT = "500ms"
"""Longest wait for a lock; a commit of a live owner releases its interval sooner."""

ATTEMPTS = 20

IDLE_TIMEOUT = "10s"
"""Postgres ends a change after this time if its process was stopped, so that others do not wait
longer."""

WISHES: dict[type[PlacementChange], str] = {
    Wish: "wish_intervals",
    Unpin: "unpin_intervals",
    SplitWish: "wish_splits",
    MergeWish: "wish_merges",
    Lapse: "lapse_cuts",
}
"""Statements of the changes; the parameters are a change's fields, as arrays."""

T = TypeVar("T")


class PostgresPlacement(Subject):
    async def read_placement(self) -> Placement:
        try:
            async with self.connections.checked() as connection:
                cursor = await connection.execute(
                    self.connections.statements.get("read_placement"), prepare=True
                )
                row = await cursor.fetchone()
        except psycopg.Error as error:
            raise translate(error) from error
        assert row is not None
        now, intervals, workers, removed, paused = row
        return Placement(
            now,
            [
                PlacedInterval(*(*found[:-1], tuple(found[-1])))
                for found in msgspec.json.decode(intervals)
            ],
            [
                PlacedWorker(
                    id_, address, host, pid, started,
                    [(backend, start) for backend, start in backends], float(left), load,
                    generation,
                )
                for id_, address, host, pid, started, backends, left, load, generation
                in msgspec.json.decode(workers)
            ],
            frozenset(msgspec.json.decode(removed)),
            frozenset(msgspec.json.decode(paused)),
        )  # fmt: skip

    # -- claims -------------------------------------------------------------------

    async def take_over(
        self, worker: str, interval_ids: list[int], *, again: bool
    ) -> tuple[dict[int, int], dict[int, int]]:
        """Any owner's intervals, or (`again`) this worker's own; returns the raised sequencer and
        the new log of each."""
        statement = "reclaim_intervals" if again else "claim_intervals"

        async def work(connection: AsyncConnection[Any]) -> tuple[dict[int, int], dict[int, int]]:
            params = {
                "interval_ids": interval_ids,
                "owner": worker,
                "sequence": self.connections.sequence,
            }
            cursor = await self._execute(connection, statement, params)
            if cursor.rowcount != len(interval_ids):
                raise Fenced(
                    "another worker has claimed intervals of this one, maybe one with newer code; "
                    "this worker must release them"
                )
            raised: dict[int, int] = dict(await cursor.fetchall())
            cursor = await self._execute(connection, "open_logs", params)
            return raised, dict(await cursor.fetchall())

        return await self._change(interval_ids, worker, work, also_live=True)

    async def take_free(
        self, worker: str, interval_ids: list[int], sequencers: Mapping[int, int]
    ) -> tuple[dict[int, int], dict[int, int]]:
        """Raise the sequencers of the intervals that are free and still have the sequencer that was
        read."""

        async def work(connection: AsyncConnection[Any]) -> tuple[dict[int, int], dict[int, int]]:
            cursor = await self._execute(
                connection,
                "claim_free_intervals",
                {
                    "interval_ids": interval_ids,
                    "sequencers": [sequencers[id_] for id_ in interval_ids],
                    "owner": worker,
                    "sequence": self.connections.sequence,
                },
            )
            raised: dict[int, int] = dict(await cursor.fetchall())
            cursor = await self._execute(
                connection,
                "open_logs",
                {"interval_ids": list(raised), "sequence": self.connections.sequence},
            )
            return raised, dict(await cursor.fetchall())

        taken = await self._change(interval_ids, worker, work)
        await self._trim_events()
        return taken

    # -- releases and wishes --------------------------------------------------------

    async def release(self, worker: str, sequencers: Mapping[int, int]) -> list[int]:
        params = {
            "interval_ids": list(sequencers),
            "sequencers": list(sequencers.values()),
            "owner": worker,
        }
        released = await self._change(
            list(sequencers),
            None,
            lambda connection: self._ids(connection, "release_intervals", params),
        )
        await self._trim_events()
        return released

    async def wish(self, changes: Sequence[PlacementChange], term: int | None = None) -> list[int]:
        last = {change.interval_id: change for change in changes}
        by_kind: dict[type[PlacementChange], list[PlacementChange]] = {}
        for change in last.values():
            by_kind.setdefault(type(change), []).append(change)

        async def work(connection: AsyncConnection[Any]) -> list[int]:
            if term is not None and not await self._still_leads(connection, term):
                return []
            changed: list[int] = []
            for kind, found in by_kind.items():
                columns = {
                    field.name: [getattr(change, field.name) for change in found]
                    for field in fields(kind)
                }
                changed += await self._ids(connection, WISHES[kind], columns)
            return sorted(changed)

        changed = await self._change(list(last), None, work)
        await self._trim_events()
        return changed

    async def _still_leads(self, connection: AsyncConnection[Any], term: int) -> bool:
        cursor = await self._execute(connection, "still_leads", {"term": term})
        return await cursor.fetchone() is not None

    async def _execute(
        self, connection: AsyncConnection[Any], name: str, params: dict[str, Any], **tables: str
    ) -> AsyncCursor[Any]:
        return await connection.execute(self.connections.statements.get(name, **tables), params)

    async def _ids(
        self, connection: AsyncConnection[Any], statement: str, params: dict[str, Any]
    ) -> list[int]:
        """Returns the ids of the changed intervals."""
        cursor = await self._execute(connection, statement, params)
        return [id_ for (id_,) in await cursor.fetchall()]

    # -- splits and merges ----------------------------------------------------------

    async def split(self, interval_id: int, sequencer: int, at: int, *, reason: str = "") -> int:
        async def work(connection: AsyncConnection[Any]) -> int:
            (parent,) = await self._take_apart(connection, {interval_id: sequencer})
            upper = upper_part(parent, at)
            params = {"interval_id": interval_id, "at": at, "reason": reason}
            return await self._begin(connection, "split_interval", params, upper)

        made = await self._change([interval_id], None, work)
        await self._trim_events()
        return made

    async def merge(
        self, lower_id: int, upper_id: int, sequencers: Mapping[int, int], *, reason: str = ""
    ) -> int:
        if lower_id == upper_id:
            raise PlacementRefused(f"interval {lower_id} cannot be merged with itself")
        parts = [lower_id, upper_id]

        async def work(connection: AsyncConnection[Any]) -> int:
            lower, upper = await self._take_apart(
                connection, {id_: sequencers[id_] for id_ in parts}
            )
            whole = merged(lower, upper)
            gone = {"interval_ids": parts}
            await self._execute(connection, "set_aside_intervals", gone)
            params = {
                "lower_id": lower_id,
                "upper_id": upper_id,
                "slot_from": whole.slot_from,
                "slot_to": whole.slot_to,
                "reason": reason,
            }
            made = await self._begin(connection, "merge_intervals", params, whole)
            await self._execute(connection, "inherit_logs", {**gone, "heir": made})
            await self._execute(
                connection, "forget_intervals", gone, latest_commits="latest_commits"
            )
            return made

        made = await self._change(parts, None, work)
        await self._trim_events()
        return made

    async def add_partitions(
        self, discovery: int, sequencer: int, found: Mapping[str, dict[str, Any] | None]
    ) -> list[FoundPartition]:
        async def work(connection: AsyncConnection[Any]) -> list[FoundPartition]:
            known = {each.identity for each in await self._partitions(connection, discovery)}
            for identity, position in found.items():
                if identity not in known:
                    await self._add_partition(connection, discovery, sequencer, identity, position)
            return await self._partitions(connection, discovery)

        return await self._change([discovery], None, work)

    async def retire_partitions(
        self, discovery: int, sequencer: int, interval_ids: Sequence[int]
    ) -> list[FoundPartition]:
        params = {
            "discovery": discovery,
            "sequencer": sequencer,
            "interval_ids": list(interval_ids),
        }

        async def work(connection: AsyncConnection[Any]) -> list[FoundPartition]:
            await self._execute(connection, "retire_partitions", params)
            return await self._partitions(connection, discovery)

        rest = await self._change([discovery, *interval_ids], None, work)
        await self._trim_events()
        return rest

    async def _add_partition(
        self,
        connection: AsyncConnection[Any],
        discovery: int,
        sequencer: int,
        identity: str,
        position: dict[str, Any] | None,
    ) -> None:
        params = {"discovery": discovery, "sequencer": sequencer, "source": identity}
        ids = {"interval_ids": [discovery]}
        cursor = await self._execute(connection, "read_interval_history", ids)
        (parent,) = map(_history, await cursor.fetchall())
        await self._begin(connection, "add_partition", params, partition(parent, 0, position))

    async def _partitions(
        self, connection: AsyncConnection[Any], discovery: int
    ) -> list[FoundPartition]:
        cursor = await self._execute(connection, "list_partitions", {"discovery": discovery})
        return [_partition(*row) for row in await cursor.fetchall()]

    async def _take_apart(
        self, connection: AsyncConnection[Any], sequencers: dict[int, int]
    ) -> list[IntervalHistory]:
        """Raise the sequencers, and only then read data (I4)."""
        ids = {"interval_ids": list(sequencers)}
        cursor = await self._execute(
            connection,
            "take_apart",
            {**ids, "sequencers": list(sequencers.values()), "sequence": self.connections.sequence},
        )
        if cursor.rowcount != len(sequencers):
            cursor = await self._execute(connection, "why_not_free", ids)
            refuse(sequencers, {id_: (at, owner) for id_, at, owner in await cursor.fetchall()})
        cursor = await self._execute(connection, "read_interval_history", ids)
        histories = {history.id: history for history in map(_history, await cursor.fetchall())}
        return [histories[id_] for id_ in sequencers]

    async def _begin(
        self,
        connection: AsyncConnection[Any],
        statement: str,
        params: dict[str, Any],
        history: IntervalHistory,
    ) -> int:
        """Returns the id of the new interval."""
        cursor = await connection.execute(
            self.connections.statements.get(statement),
            {**params, "sequence": self.connections.sequence},
        )
        row = await cursor.fetchone()
        if row is None:
            raise Fenced("another worker has claimed the interval; nothing was made")
        interval_id, sequencer = row
        newest = await newest_commit_table(connection, self.connections.statements)
        await connection.execute(
            self.connections.statements.get("begin_chain", commits=newest),
            {"interval_id": interval_id, "sequencer": sequencer, **history.first_commit()},
        )
        return int(interval_id)

    # -- how every change is made -----------------------------------------------------

    async def _change(
        self,
        interval_ids: list[int],
        worker: str | None,
        work: Callable[[AsyncConnection[Any]], Awaitable[T]],
        *,
        also_live: bool = False,
    ) -> T:
        """Run a change as one transaction. Sessions that block it for longer than a moment are
        ended, but not the worker's own.

        Args:
            also_live: end sessions of the owner even if its lease is valid.
        """
        for _ in range(ATTEMPTS):
            try:
                async with self.connections.checked() as connection, connection.transaction():
                    await self._execute(
                        connection,
                        "set_timeouts",
                        {"lock": LOCK_TIMEOUT, "idle": IDLE_TIMEOUT},
                    )
                    return await work(connection)
            except psycopg.errors.LockNotAvailable:
                await self._clear_the_way(interval_ids, worker, also_live=also_live)
            except (psycopg.errors.UndefinedTable, psycopg.errors.DeadlockDetected):
                # a bucket was dropped at the same time, or another claim locked the same intervals
                pass
            except psycopg.Error as error:
                raise translate(error) from error
        raise StoreUnavailable(
            f"intervals {interval_ids} are locked by a session that cannot be ended; "
            "look for it in pg_stat_activity"
        )

    async def _clear_the_way(
        self, interval_ids: list[int], worker: str | None, *, also_live: bool
    ) -> None:
        params = {"interval_ids": interval_ids, "owner": worker, "also_live": also_live}
        try:
            async with self.connections.checked() as connection:
                cursor = await self._execute(connection, "in_the_way", params)
                rows = await cursor.fetchall()
        except psycopg.Error as error:
            raise translate(error) from error
        for (backends,) in rows:
            await self.connections.end_backends(msgspec.json.decode(backends))

    async def _trim_events(self) -> None:
        """Delete old placement events in a transaction of its own: two changes that delete the same
        rows must not wait for each other with their intervals locked."""
        with contextlib.suppress(psycopg.Error):
            async with self.connections.checked() as connection:
                await self._execute(connection, "trim_placement_events", {"keep": KEEP_EVENTS})


def _history(row: Sequence[Any]) -> IntervalHistory:
    """A row of ``read_interval_history.sql``."""
    (
        id_, computation, slot_from, slot_to, kind, n, folded, stamp, input_watermark,
        low_watermark, floor, acked, position, counters, grain,
    ) = row  # fmt: skip
    return IntervalHistory(
        id=id_,
        computation=computation,
        slot_from=slot_from,
        slot_to=slot_to,
        is_source=kind == "injector",
        n=n,
        folded=folded,
        stamp=stamp,
        input_watermark=input_watermark,
        low_watermark=low_watermark,
        floor=floor,
        acked=msgspec.json.decode(acked),
        position=None if position is None else msgspec.json.decode(position),
        counters=msgspec.json.decode(counters),
        grain=grain,
    )


def _partition(
    id_: int,
    slot: int,
    sequencer: int,
    source: str,
    low_watermark: int,
    position: Any,
) -> FoundPartition:
    """A row of ``list_partitions.sql``."""
    decoded = None if position is None else msgspec.json.decode(position)
    return FoundPartition(id_, slot, sequencer, source, low_watermark, decoded)
