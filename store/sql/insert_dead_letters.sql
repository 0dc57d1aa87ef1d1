-- Keeps what a bundle gave up on, in the commit that acknowledges it.
INSERT INTO {dead_letter} (
    slot, computation, stream, record_id, key, value, ts, place, error, traceback, attempts, stamp
)
SELECT *
FROM unnest(
    %(slot)s::integer[], %(computation)s::smallint[], %(stream)s::text[], %(record_id)s::uuid[],
    %(key)s::text[], %(value)s::text[], %(ts)s::bigint[], %(place)s::text[], %(error)s::text[],
    %(traceback)s::text[], %(attempts)s::integer[], %(stamp)s::bigint[]
)
