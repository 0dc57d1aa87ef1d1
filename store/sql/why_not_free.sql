-- Why an interval could not be taken for a split or a merge.
SELECT k.id, k.sequencer, k.owner::text FROM {key_interval} AS k
WHERE k.id = ANY(%(interval_ids)s::bigint[])
