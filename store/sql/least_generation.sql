-- The oldest code that anything is left for.
SELECT min(generation) FROM {key_interval}
