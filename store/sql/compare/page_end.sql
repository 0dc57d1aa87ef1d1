-- The last key of a page: the lesser of those that either table has at this number of rows after the page before; no
-- row: the page is the last one.
SELECT {texts}
FROM (
    (SELECT {keys} FROM {a} AS t WHERE {after} ORDER BY {order} OFFSET %(rows)s::bigint - 1 LIMIT 1)
    UNION ALL
    (SELECT {keys} FROM {b} AS t WHERE {after} ORDER BY {order} OFFSET %(rows)s::bigint - 1 LIMIT 1)
) AS x
ORDER BY {first}
LIMIT 1
