-- State of removed nodes, a part of the slots at a time.
DELETE FROM {state}
WHERE slot >= %(slot_from)s AND slot < %(slot_to)s
  AND computation = ANY(%(computations)s::smallint[])
