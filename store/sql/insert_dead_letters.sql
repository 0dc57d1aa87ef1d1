-- Keeps what a bundle gave up on, in the commit that acknowledges it. A row of a source that
-- could not be read has no seen id: one that was kept before is not kept again.
INSERT INTO {dead_letter} (
    slot, computation, stream, record_id, key, value, ts, place, error, traceback, attempts, stamp
)
SELECT x.*
FROM unnest(
    %(slot)s::integer[], %(computation)s::smallint[], %(stream)s::text[], %(record_id)s::uuid[],
    %(key)s::text[], %(value)s::text[], %(ts)s::bigint[], %(place)s::text[], %(error)s::text[],
    %(traceback)s::text[], %(attempts)s::integer[], %(stamp)s::bigint[]
) AS x (
    slot, computation, stream, record_id, key, value, ts, place, error, traceback, attempts, stamp
)
WHERE x.key IS NOT NULL OR NOT EXISTS (
    SELECT FROM {dead_letter} AS kept WHERE kept.key IS NULL AND kept.record_id = x.record_id
)
