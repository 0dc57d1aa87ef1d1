PROCESSED = "processed"
RECORDS_OUT = "records_out"
DEAD_LETTERS = "dead_letters"
BAD_ROWS = "bad_rows"
BLOOM_MAYBES = "bloom_maybes"
DUPLICATES_DROPPED = "duplicates_dropped"
WEAK_CHANGED = "weak_changed"
STRAGGLERS = "stragglers"
REPLAYS = "replays"
WITHHELD = "withheld"
"""Records and lines for a place outside the store that were dropped (decision 86)."""
COMMON_COUNTERS = frozenset(
    [PROCESSED, RECORDS_OUT, DEAD_LETTERS, BAD_ROWS, BLOOM_MAYBES, DUPLICATES_DROPPED]
)
"""Counters with a column in `millwheel status`, and a metric of their own."""
ENGINE_COUNTERS = COMMON_COUNTERS | {WEAK_CHANGED, STRAGGLERS, REPLAYS, WITHHELD}
"""Counters of the engine, which user code may not change."""
