-- The number of folded timers, up to a limit; that number by the statistics of the server, NULL if it has none; the blocks
-- of their table; and the number of changes of timers that are not folded, up to a limit.
SELECT (SELECT count(*) FROM (SELECT FROM {timer} LIMIT %(most_timers)s::bigint + 1) AS t),
       CASE
           WHEN c.relpages > 0 AND c.reltuples >= 0
           THEN c.reltuples / c.relpages * (pg_relation_size(c.oid) / current_setting('block_size')::bigint)
       END,
       greatest(pg_relation_size(c.oid) / current_setting('block_size')::bigint, 1),
       (
           SELECT count(*)
           FROM (
               SELECT FROM {fold} AS f
               CROSS JOIN LATERAL (
                   SELECT FROM {timer_change} AS r
                   WHERE r.interval_id = f.interval_id AND r.n > f.through AND r.n < f.through + 1000000000
                   OFFSET 0
               ) AS x
               LIMIT %(most_changes)s::bigint + 1
           ) AS u
       )
FROM pg_class AS c
WHERE c.relname = 'timer' AND c.relnamespace = (
    SELECT own.relnamespace FROM {pipeline} AS p JOIN pg_class AS own ON own.oid = p.tableoid
)
