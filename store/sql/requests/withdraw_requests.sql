-- Takes back requests that were not carried out yet.
UPDATE {request} SET outcome = 'withdrawn', settled_at = now()
WHERE batch = %(batch)s AND outcome IS NULL
RETURNING id
