"""One key interval: queue, state, timers, dedup, logs, watermarks; and the exchange between
intervals."""
