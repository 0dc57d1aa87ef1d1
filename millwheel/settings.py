"""Every limit of the engine, with its unit, its range and the reason for its default."""

from __future__ import annotations

from dataclasses import Field, dataclass, field, fields
from textwrap import wrap
from typing import Any, NamedTuple

from millwheel.errors import UsageError

__all__ = ["Settings"]

MEBIBYTE = 1 << 20
GIBIBYTE = 1 << 30
FOREVER = 1e9
"""A period, in seconds, that no process lives to see: 32 years."""


class Range(NamedTuple):
    least: float
    most: float
    text: str


def setting(default: float, least: float, most: float, text: str) -> Any:
    return field(default=default, metadata={"range": Range(least, most, " ".join(text.split()))})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Limits and periods of one worker. Sizes are in bytes, times in seconds.

    ```python
    settings = Settings(lease_seconds=10, bundle_records=500)
    shop = Pipeline("shop", settings=settings)
    ```
    """

    # fmt: off
    intervals: int = setting(1, 1, 65_536, """
        Key intervals of a computation at its first deploy. Workers split and merge intervals by
        load afterwards; start with more if you know that many workers will share the pipeline at
        once.""")

    bundle_records: int = setting(2000, 1, 1_000_000, """
        Maximum records and timers in one commit; more gain little per record.""")

    bundle_bytes: int = setting(8 * MEBIBYTE, 1, GIBIBYTE, """
        Maximum encoded effects in one commit.""")

    chunk_records: int = setting(700, 1, 1_000_000, """
        Maximum records processed before the event loop runs again; fewer if they take more than 10
        ms, or have effects of more than `bundle_bytes`. A smaller chunk costs more per record; with
        a larger one, watermarks wait longer under full load (decision 37). Sources read as many
        rows at a time.""")

    max_unacked_records: int = setting(8000, 1, 10_000_000, """
        Maximum records of one sender that are sent and not acknowledged: the credits of one
        log.""")

    max_unacked_bytes: int = setting(32 * MEBIBYTE, 1, 64 * GIBIBYTE, """
        Maximum encoded values of one sender that are not acknowledged: its credits in bytes.""")

    max_record_bytes: int = setting(8 * MEBIBYTE, 1, GIBIBYTE, """
        Maximum size of one encoded value; a larger one is an error of the code that made it.""")

    max_state_bytes: int = setting(16 * MEBIBYTE, 1, GIBIBYTE, """
        Maximum size of one encoded state object or map entry. Larger state belongs in a
        MapState.""")

    max_acked_runs: int = setting(64, 0, 100_000, """
        Maximum stored runs of ACKs past the acknowledged prefix; after a restart, records of the
        other runs are sent again and dropped.""")

    cache_bytes: int = setting(128 * MEBIBYTE, 0, 1024 * GIBIBYTE, """
        Maximum memory of cached state in one worker, Python objects included, without state that is
        not folded yet. A key takes 450 bytes plus its state as JSON; a key with collections takes
        twice as much, plus 220 bytes for each entry.""")

    eager_entries: int = setting(64, 1, 1_000_000, """
        Maximum map entries loaded together with a key; a larger map is loaded entry by entry.""")

    broadcast_cells: int = setting(16, 1, 1024, """
        Number of key ranges of a computation with a broadcast table each; a power of two. A
        broadcast record is sent to and stored in each of them, and at most this number of workers
        can share the computation. It is part of the deployed graph and cannot be changed later.""")

    timers_in_memory: int = setting(20_000, 1, 10_000_000, """
        Number of timers of one interval and kind in memory, the earliest ones. The others are in
        the store, and are read in pages of this size as time approaches them.""")

    waiting_keys: int = setting(1000, 1, 1_000_000, """
        Maximum keys of one lane with user code that waits (for a network call, say) when the lane
        begins another chunk.""")

    filter_capacity: int = setting(125_000, 1, 100_000_000, """
        Number of ids in the first Bloom filter of a bucket; each further one is four times as
        large.""")

    bucket_seconds: float = setting(120.0, 0.1, FOREVER, """
        Production time covered by one bucket of the append-only tables.""")

    bucket_rows: int = setting(2_000_000, 1, 1_000_000_000, """
        Number of rows after which a bucket closes early.""")

    source_bucket_rows: int = setting(250_000, 1, 1_000_000_000, """
        Number of rows of a replayable source covered by one bucket of seen ids.""")

    id_retention_seconds: float = setting(86_400.0, 0.0, FOREVER, """
        Minimum time for which user-supplied ids are remembered.""")

    id_bucket_seconds: float = setting(3_600.0, 0.1, FOREVER, """
        Arrival time covered by one bucket of user-supplied ids.""")

    fold_seconds: float = setting(2.0, 0.0, FOREVER, """
        Time between two folds of one interval while it changes.""")

    fold_rows: int = setting(50_000, 1, 1_000_000_000, """
        Number of unfolded rows of one interval that start a fold early.""")

    fold_tail_rows: int = setting(500_000, 1, 1_000_000_000, """
        Number of unfolded rows up to which a fold waits for an old snapshot to end.""")

    housekeeping_seconds: float = setting(0.5, 0.01, FOREVER, """
        Period of the worker's background work: folds, buckets, repeated messages to other
        workers.""")

    placement_seconds: float = setting(1.0, 0.01, 3600.0, """
        Period at which a worker checks which workers are alive and which should own each
        interval.""")

    lease_seconds: float = setting(6.0, 0.5, 3600.0, """
        Time for which a worker that is frozen or out of reach keeps its intervals. Those of a dead
        process are claimed at once.""")

    block_limit_seconds: float = setting(60.0, 0.1, FOREVER, """
        Time for which user code may block the event loop (a call that does not await) while a
        thread keeps the worker's lease. After it the lease ends, other workers take the intervals,
        and the record obeys ``on_error`` where it is met again (decision 63).""")

    store_patience_seconds: float = setting(60.0, 0.0, FOREVER, """
        Time for which an unreachable store, or a sink's file on a full disk, is retried before the
        worker stops with an error.""")

    idle_commit_seconds: float = setting(0.1, 0.0, 60.0, """
        Maximum time that acknowledgements and positions wait for a commit with other effects.""")

    watermark_commit_seconds: float = setting(0.005, 0.0, 60.0, """
        Time that a low watermark waits for a commit of its interval's records, and the least time
        between two commits of a watermark alone: a commit for each record's watermark would delay
        the records themselves.""")

    lock_timeout_milliseconds: int = setting(50, 1, 600_000, """
        Maximum time that the removal of a bucket waits for readers of the bucket.""")

    progress_seconds: float = setting(1.0, 0.01, 3600.0, """
        Period of progress lines if the output is not a terminal.""")

    placement_moves: int = setting(4, 1, 1000, """
        Maximum intervals that are moved, split or merged at the same time; each is stopped
        meanwhile.""")

    placement_minimum_gain: float = setting(0.1, 0.0, 1000.0, """
        Least CPU seconds per second by which a move must relieve the hotter of two workers.""")

    placement_imbalance: float = setting(0.2, 0.0, 1000.0, """
        Load that a worker may have above its fair share, as a part of that share, before load
        moves.""")

    placement_quiet_load: float = setting(0.2, 0.0, 1000.0, """
        CPU seconds per second below which a worker is never relieved.""")

    placement_cooldown_seconds: float = setting(30.0, 0.0, FOREVER, """
        Time for which an interval stays in place after a move, split or merge, so that its new load
        can be measured. Parts of a split are handed out, and split again, at once while some
        workers have none.""")

    placement_intervals_most: int = setting(64, 1, 65_536, """
        Number of intervals of one computation up to which hot ones are split.""")

    placement_intervals_least: int = setting(8, 1, 65_536, """
        Number of intervals of one computation below which none are merged.""")
    # fmt: on

    def __post_init__(self) -> None:
        """Check each value.

        Raises:
            UsageError: a value has another type than the default, or is outside its range.
        """
        for each in fields(self):
            _check(each, getattr(self, each.name))


def _check(each: Field[Any], value: object) -> None:
    kind, (least, most, text) = type(each.default), each.metadata["range"]
    allowed = (int,) if kind is int else (int, float)
    if isinstance(value, allowed) and not isinstance(value, bool) and least <= value <= most:
        return
    raise UsageError(
        f"Settings({each.name}={value!r:.80}): give "
        f"{'a whole number' if kind is int else 'a number'} from {least:,} to {most:,}; the "
        f"default is {each.default:,}. {text}"
    )


def _described() -> str:
    lines = [str(Settings.__doc__), "", "Name, default (range) and meaning:", ""]
    for each in fields(Settings):
        least, most, text = each.metadata["range"]
        lines += [
            f"{each.name} = {each.default:,} ({least:,} to {most:,})",
            *wrap(text, 84, initial_indent="    ", subsequent_indent="    "),
        ]
    return "\n".join(lines)


Settings.__doc__ = _described()
