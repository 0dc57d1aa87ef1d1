-- What operators have asked for about one key, among the newest requests, the newest first.
SELECT (extract(epoch FROM r.asked_at) * 1000000)::bigint, r.actor, r.verb, left(r.payload::text, %(most_characters)s),
       coalesce(r.outcome, 'open'), r.batch
FROM {request} AS r
WHERE r.id > (SELECT max(n.id) FROM {request} AS n) - %(most_requests)s
  AND r.computation = %(computation_id)s AND r.slot = %(slot)s AND r.key = %(key)s
ORDER BY r.id DESC
LIMIT %(limit)s
