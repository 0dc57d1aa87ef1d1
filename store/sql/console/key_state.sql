-- The state of one key: the state object, a page of the entries of its collections, and the number of all entries, up to
-- a limit. As {state_of}, which reads all entries; of commits without the slot, it reads no keys.
WITH tail AS MATERIALIZED (
    SELECT DISTINCT ON (e.entry) e.entry, e.value, c.version
    FROM {fold} AS f
    CROSS JOIN LATERAL (
        SELECT * FROM {state_change} AS r
        WHERE r.interval_id = f.interval_id AND r.n > f.through AND r.n < f.through + 1000000000
        OFFSET 0
    ) AS c
    CROSS JOIN LATERAL (
        SELECT u.key, coalesce(u.entry, '' COLLATE "C") AS entry, u.value
        FROM unnest(c.keys, c.entries, c.values) AS u (key, entry, value)
    ) AS e
    WHERE f.interval_id = %(interval_id)s AND c.computation = %(computation_id)s
      AND %(slot)s = ANY(c.slots)
      AND e.key = %(key)s
    ORDER BY e.entry, c.n DESC
), plain AS (
    SELECT s.entry, s.value, s.version
    FROM {state} AS s
    WHERE s.slot = %(slot)s AND s.computation = %(computation_id)s AND s.key = %(key)s AND s.entry = ''
      AND NOT EXISTS (SELECT FROM tail AS t WHERE t.entry = '')
    UNION ALL
    SELECT t.entry, t.value, t.version FROM tail AS t WHERE t.entry = '' AND t.value IS NOT NULL
), counted AS (
    SELECT count(*) AS entries
    FROM (
        (
            SELECT FROM {state} AS s
            WHERE s.slot = %(slot)s AND s.computation = %(computation_id)s AND s.key = %(key)s AND s.entry > ''
              AND s.entry NOT IN (SELECT t.entry FROM tail AS t)
            LIMIT %(most_counted)s::bigint + 1
        )
        UNION ALL
        SELECT FROM tail AS t WHERE t.entry > '' AND t.value IS NOT NULL
    ) AS e
), page AS (
    SELECT p.entry, p.value, p.version
    FROM (
        (
            SELECT s.entry, s.value, s.version
            FROM {state} AS s
            WHERE s.slot = %(slot)s AND s.computation = %(computation_id)s AND s.key = %(key)s AND s.entry > %(after)s
              AND s.entry NOT IN (SELECT t.entry FROM tail AS t)
            ORDER BY s.entry
            LIMIT %(skip)s::bigint + %(limit)s::bigint + 1
        )
        UNION ALL
        SELECT t.entry, t.value, t.version FROM tail AS t WHERE t.entry > %(after)s AND t.value IS NOT NULL
    ) AS p
    ORDER BY p.entry
    LIMIT %(limit)s::bigint + 1 OFFSET %(skip)s
)
SELECT x.entry, x.value::text, x.version, c.entries
FROM counted AS c
LEFT JOIN (SELECT * FROM plain UNION ALL SELECT * FROM page) AS x ON true
ORDER BY x.entry
