-- Timers of removed nodes, for a range of slots.
DELETE FROM {timer}
WHERE slot >= %(slot_from)s AND slot < %(slot_to)s
  AND computation = ANY(%(computations)s::smallint[])
