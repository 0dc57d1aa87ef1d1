-- Locks the intervals of nodes before their removal; waits for commits that are on the wire (I4).
SELECT k.id FROM {key_interval} AS k
WHERE k.computation = ANY(%(computations)s::smallint[])
ORDER BY k.id
FOR UPDATE
