"""Every limit of the engine, with its unit and the reason for its default."""

from __future__ import annotations

from dataclasses import dataclass

MEBIBYTE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Limits and periods of one worker. Sizes are in bytes, times in seconds."""

    intervals: int = 1
    """Key intervals of a computation at its first deploy. Workers split and merge intervals by load
    afterwards; start with more if you know that many workers will share the pipeline at once."""

    bundle_records: int = 2000
    """Maximum records and timers in one commit; more gain little per record."""

    bundle_bytes: int = 8 * MEBIBYTE
    """Maximum encoded effects in one commit."""

    chunk_records: int = 700
    """Maximum records processed before the event loop runs again; fewer if they take more than 10
    ms, or have effects of more than `bundle_bytes`. A smaller chunk costs more per record; with a
    larger one, watermarks wait longer under full load (decision 37). Sources read as many rows at a
    time."""

    max_unacked_records: int = 8000
    """Maximum records of one sender that are sent and not acknowledged: the credits of one log."""

    max_unacked_bytes: int = 32 * MEBIBYTE
    """Maximum encoded values of one sender that are not acknowledged: its credits in bytes."""

    max_record_bytes: int = 8 * MEBIBYTE
    """Maximum size of one encoded value; a larger one is an error of the code that made it."""

    max_state_bytes: int = 16 * MEBIBYTE
    """Maximum size of one encoded state object or map entry. Larger state belongs in a MapState."""

    max_acked_runs: int = 64
    """Maximum stored runs of ACKs past the acknowledged prefix; after a restart, records of the
    other runs are sent again and dropped."""

    cache_bytes: int = 128 * MEBIBYTE
    """Maximum memory of cached state in one worker, Python objects included, without state that is
    not folded yet. A key takes 450 bytes plus its state as JSON; a key with collections takes twice
    as much, plus 220 bytes for each entry."""

    eager_entries: int = 64
    """Maximum map entries loaded together with a key; a larger map is loaded entry by entry."""

    broadcast_cells: int = 16
    """Number of key ranges of a computation with a broadcast table each; a power of two. A
    broadcast record is sent to and stored in each of them, and at most this number of workers can
    share the computation. It is part of the deployed graph and cannot be changed later."""

    timers_in_memory: int = 20_000
    """Number of timers of one interval and kind in memory, the earliest ones. The others are in the
    store, and are read in pages of this size as time approaches them."""

    waiting_keys: int = 1000
    """Maximum keys of one lane with user code that waits (for a network call, say) when the lane
    begins another chunk."""

    filter_capacity: int = 125_000
    """Number of ids in the first Bloom filter of a bucket; each further one is four times as
    large."""

    bucket_seconds: float = 120.0
    """Production time covered by one bucket of the append-only tables."""

    bucket_rows: int = 2_000_000
    """Number of rows after which a bucket closes early."""

    source_bucket_rows: int = 250_000
    """Number of rows of a replayable source covered by one bucket of seen ids."""

    id_retention_seconds: float = 86_400.0
    """Minimum time for which user-supplied ids are remembered."""

    id_bucket_seconds: float = 3_600.0
    """Arrival time covered by one bucket of user-supplied ids."""

    fold_seconds: float = 2.0
    """Time between two folds of one interval while it changes."""

    fold_rows: int = 50_000
    """Number of unfolded rows of one interval that start a fold early."""

    fold_tail_rows: int = 500_000
    """Number of unfolded rows up to which a fold waits for an old snapshot to end."""

    housekeeping_seconds: float = 0.5
    """Period of the worker's background work: folds, buckets, repeated messages to other
    workers."""

    placement_seconds: float = 1.0
    """Period at which a worker checks which workers are alive and which should own each
    interval."""

    lease_seconds: float = 6.0
    """Time for which a worker that is frozen or out of reach keeps its intervals. Those of a dead process are
    claimed at once."""

    store_patience_seconds: float = 60.0
    """Time for which an unreachable store, or a sink's file on a full disk, is retried before the
    worker stops with an error."""

    idle_commit_seconds: float = 0.1
    """Maximum time that acknowledgements and positions wait for a commit with other effects."""

    watermark_commit_seconds: float = 0.005
    """Time that a low watermark waits for a commit of its interval's records, and the least time
    between two commits of a watermark alone: a commit for each record's watermark would delay the
    records themselves."""

    lock_timeout_milliseconds: int = 50
    """Maximum time that the removal of a bucket waits for readers of the bucket."""

    progress_seconds: float = 1.0
    """Period of progress lines if the output is not a terminal."""

    placement_moves: int = 4
    """Maximum intervals that are moved, split or merged at the same time; each is stopped
    meanwhile."""

    placement_minimum_gain: float = 0.1
    """Least CPU seconds per second by which a move must relieve the hotter of two workers."""

    placement_imbalance: float = 0.2
    """Load that a worker may have above its fair share, as a part of that share, before load
    moves."""

    placement_quiet_load: float = 0.2
    """CPU seconds per second below which a worker is never relieved."""

    placement_cooldown_seconds: float = 30.0
    """Time for which an interval stays in place after a move, split or merge, so that its new load
    can be measured. Parts of a split are handed out, and split again, at once while some workers
    have none."""

    placement_intervals_most: int = 64
    """Number of intervals of one computation up to which hot ones are split."""

    placement_intervals_least: int = 8
    """Number of intervals of one computation below which none are merged."""
