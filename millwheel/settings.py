"""Every limit of the engine in one place, with its unit and the reason for its default."""

from __future__ import annotations

from dataclasses import dataclass

MEBIBYTE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Limits and periods of one worker. Sizes in bytes, times in seconds."""

    intervals: int = 1
    """Key intervals of a computation at its first deploy. Workers split and merge intervals by load
    afterwards; start with more if you know that many workers will share the pipeline at once."""

    bundle_records: int = 2000
    """Records and timers in one commit at the most; past this the gain per record is small."""

    bundle_bytes: int = 8 * MEBIBYTE
    """Encoded effects in one commit at the most."""

    chunk_records: int = 700
    """Records run between two looks at the event loop at the most; fewer where they take more than
    10 ms, or have effects of more than `bundle_bytes`. With fewer a record costs more, with more a
    watermark waits longer under full load (decision 37). It is also how many rows are read at a time."""

    max_unacked_records: int = 8000
    """Records a sender may have on their way to receivers: the credits of one log."""

    max_unacked_bytes: int = 32 * MEBIBYTE
    """Encoded values a sender may have on their way: the same credits in bytes."""

    max_record_bytes: int = 8 * MEBIBYTE
    """One encoded value; a larger one is the fault of the code that made it."""

    max_state_bytes: int = 16 * MEBIBYTE
    """One encoded state object or map entry. Larger state belongs in a MapState."""

    max_acked_runs: int = 64
    """Runs of ACKs past the prefix that are stored; what is left out is sent again and dropped."""

    cache_bytes: int = 128 * MEBIBYTE
    """What the state that one worker keeps in memory may occupy, objects included, besides what is not
    folded yet. A key takes 450 bytes and its state as JSON; one with collections twice as much, and
    220 for each entry."""

    eager_entries: int = 64
    """Map entries loaded together with a key; a larger map is loaded entry by entry."""

    broadcast_cells: int = 16
    """Ranges of keys of a computation that have a table of broadcast records each, a power of two:
    a broadcast record is sent and stored so many times, and no more workers than that can share
    the computation. It is part of the deployed graph, and cannot be changed later."""

    timers_in_memory: int = 20_000
    """Timers of one interval and kind kept in memory, the soonest; the others stand in the store
    and are read in pages of this size as time gets there."""

    waiting_keys: int = 1000
    """Keys of one lane whose user code may wait (for a network call, say) before another chunk is begun."""

    filter_capacity: int = 125_000
    """Ids the first Bloom filter of a bucket holds; the next are four times as large."""

    bucket_seconds: float = 120.0
    """Production time covered by one bucket of the append-only tables."""

    bucket_rows: int = 2_000_000
    """Rows after which a bucket closes before its time."""

    source_bucket_rows: int = 250_000
    """Rows of a replayable source covered by one bucket of seen ids."""

    id_retention_seconds: float = 86_400.0
    """How long user-supplied ids are remembered at the least."""

    id_bucket_seconds: float = 3_600.0
    """Arrival time covered by one bucket of user-supplied ids."""

    fold_seconds: float = 2.0
    """Time between two folds of one interval while it changes."""

    fold_rows: int = 50_000
    """Unfolded rows of one interval that start a fold before its time."""

    fold_tail_rows: int = 500_000
    """Unfolded rows up to which a fold waits for an old snapshot to go away."""

    housekeeping_seconds: float = 0.5
    """Period of the worker's chores: folds, buckets, what is said again to other workers."""

    placement_seconds: float = 1.0
    """Period of looking who is there and who should own what."""

    lease_seconds: float = 15.0
    """How long a worker that falls silent keeps its intervals."""

    store_patience_seconds: float = 60.0
    """How long an unreachable store, or a sink's file on a full disk, is tried before the worker stops
    with an error."""

    idle_commit_seconds: float = 0.1
    """How long acknowledgements and positions alone may wait for a commit to ride on."""

    watermark_commit_seconds: float = 0.005
    """How long a low watermark waits for a commit of its interval's records, and how often an interval
    asks for a commit of its watermark alone: one for each step of each record's would hold up the
    records themselves."""

    lock_timeout_milliseconds: int = 50
    """How long the dropping of a bucket may queue behind its readers."""

    progress_seconds: float = 1.0
    """Period of progress lines when the output is no terminal."""

    placement_moves: int = 4
    """Intervals that are moved, split or merged at a time: each stands still meanwhile."""

    placement_minimum_gain: float = 0.1
    """CPU seconds per second that a move takes off the hotter one of two workers at the least."""

    placement_imbalance: float = 0.2
    """Part of the fair share that a worker may have above it before anything is moved by load."""

    placement_quiet_load: float = 0.2
    """CPU seconds per second below which a worker is never relieved."""

    placement_cooldown_seconds: float = 30.0
    """How long an interval is left alone after it was moved, split or merged: its new load has to
    be measured first. Parts of a split are handed out, and split again, at once while there are
    workers without one."""

    placement_intervals_most: int = 64
    """Intervals of one computation up to which hot ones are split."""

    placement_intervals_least: int = 8
    """Intervals of one computation that are never merged into fewer."""
