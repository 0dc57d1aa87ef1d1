-- The current sequencers of some intervals.
SELECT id, sequencer FROM {key_interval} WHERE id = ANY(%(interval_ids)s::bigint[])
