-- Every interval with its last commit, in the order of the graph; for sources also their identity, and what
-- their owners reported last: the flow of a source, records in the queue, the rate, time of user code, and keys at work.
SELECT c.name, c.kind, l.input_watermark, l.low_watermark, l.stamp, l.counters, l.position,
       (
           SELECT g.source FROM {log} AS g
           WHERE g.interval_id = l.interval_id AND g.source IS NOT NULL
       ) AS source,
       k.id, k.slot_from, k.slot_to, k.owner::text, k.sequencer, l.n,
       nullif(k.wanted_by, k.owner)::text AS wanted_by, c.paused,
       w.load -> 'intervals' -> k.id::text -> 'flow' AS flow,
       (w.load -> 'intervals' -> k.id::text ->> 'queue')::bigint AS queued,
       (w.load -> 'intervals' -> k.id::text ->> 'records')::float8 AS rate,
       (w.load -> 'intervals' -> k.id::text ->> 'records_out')::float8 AS rate_out,
       w.load -> 'intervals' -> k.id::text -> 'code' AS code,
       w.load -> 'intervals' -> k.id::text -> 'at_work' AS at_work,
       (w.load ->> 'share')::float8 AS share, w.id IS NOT NULL AS is_owned
FROM {computation} AS c
JOIN {latest_commits} AS l ON l.computation = c.name
JOIN {key_interval} AS k ON k.id = l.interval_id
LEFT JOIN {worker} AS w ON w.id = k.owner AND NOT w.stopped AND w.lease_until > now()
ORDER BY c.id, l.slot_from
