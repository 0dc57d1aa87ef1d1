-- Which of some buckets were dropped: they are missing, and a newer one exists. (The server has lost a missing
-- bucket that is newer than all others.)
SELECT x.id
FROM unnest(%(ids)s::bigint[]) AS x (id)
WHERE x.id < (SELECT max(b.id) FROM {bucket} AS b)
  AND NOT EXISTS (SELECT FROM {bucket} AS b WHERE b.id = x.id)
ORDER BY x.id
