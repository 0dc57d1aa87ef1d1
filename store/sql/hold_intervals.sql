-- Locks the intervals of nodes that are to be removed; it waits for what is on the wire (I4).
SELECT k.id FROM {key_interval} AS k
WHERE k.computation = ANY(%(computations)s::smallint[])
ORDER BY k.id
FOR UPDATE
