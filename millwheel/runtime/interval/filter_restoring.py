"""Rebuilds an interval's Bloom filters from the store while its lane runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from millwheel.core.model import name_of
from millwheel.errors import StoreError
from millwheel.runtime.environment import Environment
from millwheel.runtime.interval.interval import Interval, Ownership
from millwheel.runtime.seen.dedup import Dedup
from millwheel.runtime.seen.seen_buckets import Buckets

FIRST_ID = (bytes(16), -1)
"""Sorts before all (id, slot) pairs."""

REBUILD_ROWS = 1000
"""Ids added before a rebuild yields to the event loop: about 3 ms."""


async def rebuild_filters(env: Environment, buckets: Buckets, interval: Interval) -> None:
    """Read the ids that other owners of an interval have seen into its filters.

    Buckets that share a filter come last, and it is sized for all their ids: a filter that grows
    becomes several, and each record asks all of them.
    """

    async def read(bucket: int, learn: Callable[[int], Awaitable[None]]) -> None:
        if interval.ownership is not Ownership.HELD:
            return
        try:
            await env.patiently(lambda: learn(bucket))
        except StoreError:
            # Dropped since, with all its records acknowledged: there is nothing to read.
            if not await buckets.is_gone(bucket):
                raise

    dedup = interval.dedup
    inherited = sorted(dedup.inherited)
    sharing = [id_ for id_ in inherited if buckets.named_span(id_) is not None]
    for bucket in inherited:
        if bucket not in sharing:
            await read(bucket, partial(rebuild, dedup))
    for bucket in sharing:
        await read(bucket, partial(expect, dedup))
    for bucket in sharing:
        await read(bucket, partial(rebuild, dedup))


async def expect(dedup: Dedup, bucket: int) -> None:
    """Make room for the user-supplied ids of an inherited bucket."""
    span = dedup.buckets.named_span(bucket)
    if span is not None:
        found = await dedup.store.count_seen(bucket, dedup.computation, dedup.slots)
        dedup.span_of(span).expect(found)


async def rebuild(dedup: Dedup, bucket: int) -> None:
    """Read the ids of an inherited bucket that other owners have seen: the newest number of each
    log, whatever its slot, and page by page the ids that arrive in no order."""
    found = dedup.seen_in(bucket)
    span = dedup.buckets.named_span(bucket)
    if span is not None:
        filters = dedup.span_of(span)
    else:
        filters = found
        newest = await dedup.store.newest_seen(bucket, dedup.computation)
        for log, number in newest.items():
            found.advance(log, number)
    after = FIRST_ID
    while not found.ready:
        rows = await dedup.store.scan_seen(
            bucket, dedup.computation, dedup.slots, after, REBUILD_ROWS
        )
        for id_, _ in rows:
            filters.add(name_of(id_))
        if len(rows) < REBUILD_ROWS:
            found.ready = True
            return
        after = rows[-1]
        await asyncio.sleep(0)
