-- The reason for which an interval could not be split or merged: its sequencer and owner.
SELECT k.id, k.sequencer, k.owner::text FROM {key_interval} AS k
WHERE k.id = ANY(%(interval_ids)s::bigint[])
