"""``python -m tests.faults.owners [--seconds 60] [--seed 1]``: the store's protocol of ownership,
without the engine.

Processes claim, commit, fold, release, split and merge the same few intervals as fast as the store
lets them. All the while they are frozen for up to twice their lease, or killed, at any instant. A
commit raises the counts of some keys by one, and writes each new count into `ledger`, whose primary
key is (key, count). So a change of state that gets lost is made once more, and refused; at the end
the counts must be those of the ledger.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import signal
import sys
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

import psycopg

from millwheel.core.clock import SystemClock
from millwheel.core.codec import encode_key
from millwheel.core.model import SLOTS
from millwheel.errors import Fenced, PlacementRefused, StatementError, StoreError
from millwheel.runtime.process.stamps import Stamps
from millwheel.runtime.seen.seen_buckets import Buckets
from millwheel.settings import Settings
from millwheel.store import embedded
from millwheel.store.console.migrate import migrate
from millwheel.store.port.claims import Claim
from millwheel.store.port.commit import Commit, IntervalCommit
from millwheel.store.port.deploy import DescribedGraph, NodeDeploy
from millwheel.store.port.states import StateRun
from millwheel.store.postgres.store import PostgresStore
from tests.campaign.planted import plant
from tests.faults.kill_flights import workplace
from tests.support.store_sites import GRAPH, LINES, TOTALS, WORDS

SCHEMA = "owners"
OWNERS = 5
KEYS = {f"key {number}": encode_key(f"key {number}") for number in range(200)}
LEASE_SECONDS = 0.5
FROZEN_SECONDS = (0.05, 0.3, 0.7, 1.0)
KILLED = 0.05
"""Share of the frozen owners that are killed."""
LEAST_SLOTS = SLOTS // 32
SETTINGS = Settings(bucket_seconds=2.0, bucket_rows=1000)
REFUSALS = (StoreError, Fenced, PlacementRefused)

LEDGER = "CREATE TABLE {}.ledger (key text, count bigint, PRIMARY KEY (key, count))"
NOTE = "INSERT INTO ledger VALUES (%s, %s)"
COMPUTATION = "SELECT id FROM {}.computation WHERE name = 'count'"
DIFFERENCES = """
SELECT l.key, l.highest, l.rows, s.value
FROM (SELECT key, max(count) AS highest, count(*) AS rows FROM {0}.ledger GROUP BY key) AS l
LEFT JOIN {0}.states AS s ON s.key #>> '{{}}' = l.key
WHERE l.highest <> l.rows OR s.value::text::bigint IS DISTINCT FROM l.highest
"""


@dataclass
class Outcome:
    """How it ended."""

    acts: dict[str, int]
    """How often each act of an owner succeeded."""
    frozen: int
    differences: list[Any]
    """Keys whose count is not that of the ledger."""
    exits: list[int]
    """Exit codes of owners that have ended by themselves; 1: a change was lost, or the owner has
    failed."""


class Held:
    """An interval that an owner holds, with the counts of its keys as they are stored."""

    def __init__(self, claim: Claim) -> None:
        row = claim.interval
        self.id, self.sequencer, self.slots = row.id, row.sequencer, (row.slot_from, row.slot_to)
        self.n, self.bucket, self.folded = claim.n, claim.bucket, claim.folded
        self.counts = {
            key: 0 for key, (_, slot) in KEYS.items() if row.slot_from <= slot < row.slot_to
        }
        self.leaving = False

    async def load(self, store: PostgresStore, computation: int, claim: Claim) -> None:
        """Read the folded counts, and add those of the claim that are not folded."""
        places = [(KEYS[key][1], KEYS[key][0]) for key in self.counts]
        stored = await store.load_keys(computation, places, 1)
        for key, rows in zip(self.counts, stored, strict=True):
            if rows:
                self.counts[key] = json.loads(rows[0][1])
        for change in claim.states:
            assert change.value is not None
            self.counts[json.loads(change.key)] = json.loads(change.value)


class Owner:
    """One process."""

    def __init__(self, store: PostgresStore, computation: int, draw: Random, acts: Any) -> None:
        self._store = store
        self._computation = computation
        self._draw = draw
        self._acts = acts
        self._id = str(uuid.uuid4())
        self._stamps = Stamps(SystemClock())
        self._buckets = Buckets(store, SETTINGS, self._stamps, shared=True)
        self._held: dict[int, Held] = {}
        self._lane: Any = None
        self._committing = asyncio.Lock()

    async def run(self) -> None:
        """Do everything at once, until killed."""
        await self._store.register_worker(self._id, LEASE_SECONDS)
        await self._buckets.load()
        await self._buckets.ensure_current()
        self._lane = await self._store.open_lane()
        await asyncio.gather(
            self._again(LEASE_SECONDS / 2, self._beat),
            self._again(0.15, self._claim),
            self._again(0.02, self._commit),
            self._again(0.4, self._fold_all),
            self._again(0.8, self._leave),
        )

    async def _again(self, seconds: float, act: Callable[[], Awaitable[None]]) -> None:
        """Act again and again, after pauses of up to `seconds`; refusals are part of it."""
        while True:
            await asyncio.sleep(self._draw.uniform(0, seconds))
            try:
                await act()
            except StatementError:  # the ledger has this count already: a change was lost
                raise
            except REFUSALS:
                self._acts["refused"] += 1

    async def _beat(self) -> None:
        await self._store.heartbeat(self._id, LEASE_SECONDS, {}, self._stamps.last)

    async def _claim(self) -> None:
        placement = await self._store.read_placement()
        free = {
            row.id: row.sequencer
            for row in placement.intervals
            if row.computation == self._computation
            and row.id not in self._held
            and (row.is_free or row.owner == self._id)
        }
        if not free or len(self._held) > 2:
            return
        chosen = dict(self._draw.sample(sorted(free.items()), min(len(free), 2)))
        claims = await self._store.claim(self._id, list(chosen), sequencers=chosen)
        await self._hold(claims)
        self._acts["claimed"] += len(claims)

    async def _hold(self, claims: list[Claim]) -> None:
        await self._buckets.load()
        self._stamps.restore(max((claim.stamp for claim in claims), default=0))
        await self._buckets.ensure_current()
        for claim in claims:
            held = Held(claim)
            await held.load(self._store, self._computation, claim)
            self._held[held.id] = held

    async def _commit(self) -> None:
        if not self._buckets.covers(max(self._stamps.now(), self._stamps.last + 1)):
            await self._buckets.ensure_current()
        async with self._committing:
            held = [held for held in self._held.values() if not held.leaving]
            if not held:
                return
            raised = {one: self._raised(one) for one in held}
            commit = self._built(raised)
            try:
                await self._lane.commit(commit)
            except StatementError:
                raise
            except REFUSALS:
                await self._start_over()
                raise
            for one, counts in raised.items():
                one.n, one.bucket = one.n + 1, commit.bucket
                one.counts |= counts
            self._acts["committed"] += 1

    def _raised(self, held: Held) -> dict[str, int]:
        keys = sorted(held.counts)
        chosen = self._draw.sample(keys, min(len(keys), self._draw.choice((1, 3, 30))))
        return {key: held.counts[key] + 1 for key in chosen}

    def _built(self, raised: dict[Held, dict[str, int]]) -> Commit:
        stamp = self._stamps.next()
        commit = Commit(stamp, self._buckets.of_stamp(stamp).id)
        for held, counts in raised.items():
            texts, slots = zip(*map(KEYS.__getitem__, counts), strict=True)
            values = [str(count).encode() for count in counts.values()]
            commit.states.append(
                StateRun(held.id, held.n + 1, self._computation, 2, slots, texts, None, values)
            )
            commit.statements += [(NOTE, counted) for counted in counts.items()]
            self._buckets.rows += len(counts)
            commit.intervals.append(
                IntervalCommit(
                    held.id, held.sequencer, held.n + 1, held.bucket, stamp, stamp, stamp,
                    acked=b"{}", position=None, counters=b"{}",
                )
            )  # fmt: skip
        return commit

    async def _start_over(self) -> None:
        """After a commit with an unknown end: claim again, and read what is stored."""
        await self._lane.close()
        self._lane = await self._store.open_lane()
        while self._held:
            try:
                claims = await self._store.claim(self._id, list(self._held), again=True)
            except Fenced:
                placement = await self._store.read_placement()
                ours = {row.id for row in placement.intervals if row.owner == self._id}
                self._held = {id_: held for id_, held in self._held.items() if id_ in ours}
            else:
                self._held.clear()
                await self._hold(claims)
                return

    async def _fold(self, held: Held) -> bool:
        n = held.n
        folded = await self._store.fold(held.id, held.sequencer, held.folded, n)
        if folded:
            held.folded = max(held.folded, n)
            self._acts["folded"] += 1
        return folded

    async def _fold_all(self) -> None:
        for held in list(self._held.values()):
            if not held.leaving:
                await self._fold(held)
        await self._buckets.collect()

    async def _leave(self) -> None:
        if not self._held:
            return
        held = self._draw.choice(list(self._held.values()))
        held.leaving = True
        async with self._committing:
            pass
        if self._held.get(held.id) is not held:
            return
        try:
            while held.folded < held.n and await self._fold(held):
                pass
        finally:
            self._held.pop(held.id, None)
        if held.folded < held.n:
            return
        if await self._store.release(self._id, {held.id: held.sequencer}):
            self._acts["released"] += 1
            await self._cut(held)

    async def _cut(self, held: Held) -> None:
        low, high = held.slots
        if self._draw.random() < 0.3 and high - low > LEAST_SLOTS:
            await self._store.split(held.id, held.sequencer, (low + high) // 2)
            self._acts["split"] += 1
            return
        placement = await self._store.read_placement()
        rows = [row for row in placement.intervals if row.computation == self._computation]
        rows.sort(key=lambda row: row.slot_from)
        for lower, upper in pairwise(rows):
            if lower.owner is None and upper.owner is None:
                parts = {lower.id: lower.sequencer, upper.id: upper.sequencer}
                await self._store.merge(lower.id, upper.id, parts)
                self._acts["merged"] += 1
                return


def own(url: str, seed: int, report: Any, bug: str) -> None:
    """Be an owner, until killed; exit code 1: a change was lost, or the owner has failed."""
    if bug:
        plant(bug)
    acts: Counter[str] = Counter()

    async def run() -> None:
        store = await PostgresStore(url, SCHEMA).open()
        with psycopg.connect(url) as connection:
            ((computation,),) = connection.execute(COMPUTATION.format(SCHEMA).encode()).fetchall()
        owner = asyncio.ensure_future(Owner(store, computation, Random(seed), acts).run())
        while not owner.done():
            await asyncio.sleep(0.1)
            report.send(dict(acts))
        owner.result()

    try:
        asyncio.run(run())
    except StatementError as error:
        print(f"a change was lost: {error}", file=sys.stderr)
        os._exit(1)


def deploy(url: str) -> None:
    """Make the schema, and six intervals."""
    migrate(url, SCHEMA)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(LEDGER.format(SCHEMA).encode())

    async def run() -> None:
        store = await PostgresStore(url, SCHEMA).open()
        slots = [(part * SLOTS // 6, (part + 1) * SLOTS // 6) for part in range(6)]
        count = NodeDeploy(
            "count", "computation", 2, {"type": "integer"}, ["lines"], slots, [], [1]
        )
        now = SystemClock().now()
        await store.deploy(
 DescribedGraph(GRAPH, [LINES, count], [WORDS, TOTALS], []),
 stamp=now, bucket_high=now + 1_000_000, shared=True,
        )  # fmt: skip
        await store.close()

    asyncio.run(run())


def hammer(url: str, seconds: float, seed: int, bug: str = "") -> Outcome:
    """Let owners work, freeze and kill them, and compare.

    Args:
        bug: one of `tests.campaign.planted`, for all owners.
    """
    deploy(url)
    draw, context = Random(seed), multiprocessing.get_context("spawn")
    acts: Counter[str] = Counter()
    exits: list[int] = []
    seeds = iter(range(seed * 1000, sys.maxsize))

    def start() -> tuple[Any, Any]:
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=own, args=(url, next(seeds), there, bug), daemon=True)
        process.start()
        return process, here

    def end(owner: tuple[Any, Any]) -> None:
        process, pipe = owner
        if not process.is_alive():
            exits.append(process.exitcode)
        process.kill()
        process.join()
        last: dict[str, int] = {}
        while pipe.poll():
            try:
                last = pipe.recv()
            except EOFError:
                break
        acts.update(last)

    owners = [start() for _ in range(OWNERS)]
    frozen, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        place = draw.randrange(OWNERS)
        process, _ = owners[place]
        if process.is_alive():
            os.kill(process.pid, signal.SIGSTOP)
            time.sleep(draw.choice(FROZEN_SECONDS))
            os.kill(process.pid, signal.SIGCONT)
            frozen += 1
        if not process.is_alive() or draw.random() < KILLED:
            end(owners[place])
            owners[place] = start()
        time.sleep(draw.uniform(0, 0.4))
    for owner in owners:
        end(owner)
    with psycopg.connect(url) as connection:
        differences = connection.execute(DIFFERENCES.format(SCHEMA).encode()).fetchall()
    return Outcome(dict(acts), frozen, differences, exits)


def main() -> int:
    """The command; exit code 1: something was lost."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.owners", description=(__doc__ or "").split("\n\n")[1]
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with workplace() as directory:
        url = embedded.start(directory / "store").url
        outcome = hammer(url, options.seconds, options.seed)
    print(
        f"frozen {outcome.frozen} times; {outcome.acts}; differences: {outcome.differences}; "
        f"owners that have failed: {len(outcome.exits)}"
    )
    return 1 if outcome.differences or outcome.exits else 0


if __name__ == "__main__":
    sys.exit(main())
