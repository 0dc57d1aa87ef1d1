-- The state of one key: the state object, a page of the entries of its collections, and the number of all entries.
SELECT s.entry, s.value::text, s.version, s.total
FROM (
    SELECT e.*, count(*) FILTER (WHERE e.entry <> '') OVER () AS total,
           row_number() OVER (PARTITION BY e.entry = '' ORDER BY e.entry) AS place
    FROM {state_of}(%(computation)s, %(key)s::jsonb, %(slot)s) AS e
) AS s
WHERE s.entry = '' OR s.place BETWEEN %(skip)s::bigint + 1 AND %(skip)s::bigint + %(limit)s::bigint
ORDER BY s.entry
