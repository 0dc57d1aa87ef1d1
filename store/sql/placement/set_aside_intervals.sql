-- Frees the slots of two intervals for the merged one; both are deleted in the same transaction.
UPDATE {key_interval} SET slot_from = -1 - slot_from WHERE id = ANY(%(interval_ids)s::bigint[])
