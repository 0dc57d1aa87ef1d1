"""Rebuilds an interval's Bloom filters from the store while its lane runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from millwheel.errors import StoreError
from millwheel.runtime.environment import Environment
from millwheel.runtime.interval.buckets import Buckets
from millwheel.runtime.interval.interval import Interval, Ownership


async def rebuild_filters(env: Environment, buckets: Buckets, interval: Interval) -> None:
    """Read the ids that other owners of an interval have seen into its filters.

    Buckets that share a filter come last, and the filter is sized for all their ids: a filter that
    has to grow becomes several, and each record asks all of them.
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
    alone, sharing = dedup.inherited_by_kind()
    for bucket in alone:
        await read(bucket, dedup.rebuild)
    for bucket in sharing:
        await read(bucket, dedup.expect)
    for bucket in sharing:
        await read(bucket, dedup.rebuild)
