-- The sequencers of some intervals, as they are now.
SELECT id, sequencer FROM {key_interval} WHERE id = ANY(%(interval_ids)s::bigint[])
