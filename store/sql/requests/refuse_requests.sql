-- Settles the open requests to keys of computations that are being removed.
UPDATE {request} SET outcome = 'refused', detail = 'the computation was removed', settled_at = now()
WHERE computation = ANY(%(computations)s::smallint[]) AND outcome IS NULL
