-- All intervals with their computation and owner.
SELECT k.id, k.computation, k.slot_from, k.slot_to, k.sequencer, k.owner
FROM {key_interval} AS k
ORDER BY k.computation, k.slot_from
