-- One slice of a bucket's ids, in key order, to rebuild a filter.
SELECT slot, id FROM {table}
WHERE computation = %(computation)s
  AND (slot, computation, id) > (%(slot)s, %(computation)s, %(id)s::uuid)
  AND slot < %(slot_to)s
ORDER BY slot, computation, id
LIMIT %(limit)s
