-- How many requests of a batch came to which outcome, with the words of the newest of each.
SELECT coalesce(r.outcome, 'open'), count(*), (array_agg(r.detail ORDER BY r.settled_at DESC))[1]
FROM {request} AS r
WHERE r.batch = %(batch)s
GROUP BY 1
