-- One slice of a bucket's ids, in key order, to rebuild a filter; as bytes, which cost the reader least.
SELECT uuid_send(id), slot FROM {table}
WHERE computation = %(computation)s
  AND (id, slot) > (%(id)s::uuid, %(slot)s)
  AND slot >= %(slot_from)s AND slot < %(slot_to)s
ORDER BY id, slot
LIMIT %(limit)s
