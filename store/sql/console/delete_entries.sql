-- Entries of a collection that no code reads any more, for a range of slots.
DELETE FROM {state}
WHERE slot >= %(slot_from)s AND slot < %(slot_to)s
  AND computation = %(computation)s AND starts_with(entry, %(collection)s || '/')
