-- Makes room for the interval that two others become: both are forgotten in this transaction.
UPDATE {key_interval} SET slot_from = -1 - slot_from WHERE id = ANY(%(interval_ids)s::bigint[])
