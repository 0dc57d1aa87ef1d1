-- Entries of one key in (after, before), in order.
SELECT entry, value::text, version FROM {state}
WHERE slot = %(slot)s AND computation = %(computation)s AND key = %(key)s
  AND entry > %(after)s AND entry < %(before)s
ORDER BY entry
LIMIT %(limit)s
