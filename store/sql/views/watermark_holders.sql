-- The lowest holder of each computation. A computation that only waits for another one is followed upstream to
-- the one that does not. A function, since it has many parts, and the planner cannot know how small they are: by its
-- guess, a server would compile all of them first, which takes a hundred times as long as the look.
-- The position is JSON of `SourceProgress` (millwheel/core/source_progress.py).
CREATE OR REPLACE FUNCTION {find_holders}()
RETURNS TABLE (
    computation text, low_watermark timestamptz, holder text, what text, key jsonb, held_at timestamptz,
    age interval, path text[], root text
)
LANGUAGE sql STABLE ROWS 10 SET jit TO off AS $$
WITH RECURSIVE low AS (
    SELECT computation, kind, min(low_watermark) AS low_watermark
    FROM {latest_commits} GROUP BY computation, kind
), open_transaction AS ( -- the oldest one of the server: an inbox waits for it, as it may send records
    SELECT what, since FROM (
        SELECT
            backend_xid AS xid, xact_start AS since,
            format('process %s, user %s, %s: %s', pid, usename, state, left(query, 200)) AS what
        FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
        UNION ALL
        SELECT transaction, prepared, format('prepared transaction %s', gid) FROM pg_prepared_xacts
        UNION ALL -- sessions of other roles, of which this one may not see more
        SELECT
            l.transactionid, NULL,
            format('process %s (grant pg_read_all_stats to see its user and its query)', l.pid)
        FROM pg_locks AS l
        JOIN pg_stat_activity AS a ON a.pid = l.pid AND a.backend_xid IS NULL
        WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted
    ) AS t
    WHERE since IS NULL OR since < clock_timestamp() - interval '1 second'
    ORDER BY age(xid) DESC
    LIMIT 1
), tail AS MATERIALIZED ( -- the last change of each timer that is not folded
    SELECT DISTINCT ON (x.slot, x.computation, x.key, x.kind, x.tag)
        x.slot, x.computation, x.key, x.kind, x.tag, x.due, x.hold, x.set_at
    FROM {fold} AS f
    CROSS JOIN LATERAL (
        -- The upper bound and OFFSET 0 tell the planner that the tail is short: by index.
        SELECT * FROM {timer_change} AS c
        WHERE c.interval_id = f.interval_id AND c.n > f.through AND c.n < f.through + 1000000000
            AND c.kind <> 'wall'
        OFFSET 0
    ) AS x
    ORDER BY x.slot, x.computation, x.key, x.kind, x.tag, x.n DESC
), soonest AS ( -- by kind, in the order of the index: one more than the tail could have changed
    SELECT s.*
    FROM {computation} AS c
    CROSS JOIN (VALUES ('watermark'), ('hold')) AS k (kind)
    CROSS JOIN LATERAL (
        SELECT * FROM {timer} AS s
        WHERE s.computation = c.id AND s.kind = k.kind
        ORDER BY s.due, s.slot, s.key, s.tag
        LIMIT (SELECT count(*) + 1 FROM tail AS t WHERE t.computation = c.id AND t.kind = k.kind)
    ) AS s
    WHERE c.removed_at IS NULL
      AND NOT EXISTS (
          SELECT FROM tail AS t
          WHERE t.slot = s.slot AND t.computation = s.computation AND t.key = s.key
            AND t.kind = s.kind AND t.tag = s.tag
      )
), least AS ( -- the hold of a timer is no less than its due time, so a lower one is due before the soonest one's hold
    SELECT DISTINCT ON (f.computation, f.kind) f.computation, f.kind, f.due, f.hold
    FROM soonest AS f
    ORDER BY f.computation, f.kind, f.due
), held AS (
    SELECT slot, computation, key, kind, tag, due, hold, set_at FROM soonest
    UNION ALL
    SELECT slot, computation, key, kind, tag, due, hold, set_at FROM tail WHERE due IS NOT NULL
    UNION ALL
    SELECT s.slot, s.computation, s.key, s.kind, s.tag, s.due, s.hold, s.set_at
    FROM least AS l
    CROSS JOIN LATERAL (
        SELECT * FROM {timer} AS r
        WHERE r.computation = l.computation AND r.kind = l.kind AND r.due >= l.due AND r.due < l.hold
        OFFSET 0
    ) AS s
    WHERE s.hold < l.hold
      AND NOT EXISTS (
          SELECT FROM tail AS t
          WHERE t.slot = s.slot AND t.computation = s.computation AND t.key = s.key
            AND t.kind = s.kind AND t.tag = s.tag
      )
), holding AS ( -- one timer or hold of each computation: only this one is put into words
    SELECT DISTINCT ON (h.computation)
        c.name AS computation, h.kind, h.tag, h.key::jsonb AS key, h.hold,
        {micros_to_time}(h.due) AS due, {micros_to_time}(h.set_at) AS set_at
    FROM held AS h
    JOIN {computation} AS c ON c.id = h.computation AND c.removed_at IS NULL
    ORDER BY h.computation, h.hold, h.due, h.slot, h.key, h.tag
), parked AS ( -- one record of each computation; it does not hold if the low watermark has gone past it
    SELECT DISTINCT ON (d.computation)
        low.computation, d.id, d.key::jsonb AS key, coalesce(d.hold, d.ts) AS hold, {micros_to_time}(d.stamp) AS stored_at
    FROM {dead_letter} AS d
    JOIN {computation} AS c ON c.id = d.computation
    JOIN low ON low.computation = c.name
    WHERE d.parked IS NOT NULL AND coalesce(d.hold, d.ts) >= low.low_watermark
    ORDER BY d.computation, coalesce(d.hold, d.ts), d.id
), sent AS ( -- one record of each sender
    SELECT DISTINCT ON (sender) sender, log, seq, hold
    FROM {pending_productions}
    ORDER BY sender, hold, seq
), candidates AS (
    SELECT computation, 1 AS preference, CASE kind WHEN 'hold' THEN 'state' ELSE 'timer' END AS holder,
           CASE
               WHEN kind = 'hold' THEN format('key %s: hold %s, at %s', key, tag, due)
               -- The tag of a window's timer is the time at which the window begins.
               WHEN tag ~ '^[0-9]{{15,16}}$'
               THEN format('key %s: timer %s (%s), due %s', key, tag, {micros_to_time}(tag::bigint), due)
               ELSE format('key %s: timer %s, due %s', key, tag, due)
           END AS what,
           key, hold::numeric, set_at AS since, NULL::text AS sender
    FROM holding
    UNION ALL
    SELECT computation, 4, 'parked',
           format('key %s: parked since a record failed; this one waits in it: dead letter %s', key, id),
           key, hold::numeric, stored_at, NULL
    FROM parked
    UNION ALL
    SELECT p.sender, 2, 'record',
           format(
               'key %s: record of stream %s for %s, not acknowledged, id %s', p.key, p.stream, p.receiver, p.id
           ),
           p.key, extract(epoch FROM p.hold) * 1000000, p.produced_at, NULL
    FROM sent AS s
    JOIN {pending_productions} AS p ON p.log = s.log AND p.seq = s.seq
    UNION ALL
    SELECT low.computation, 3, 'input', format('waits for %s', u.name), NULL, w.low_watermark,
           NULL, u.name
    FROM low
    JOIN {computation} AS c ON c.name = low.computation
    CROSS JOIN LATERAL jsonb_array_elements_text(c.upstream) AS u (name)
    JOIN low AS w ON w.computation = u.name
    UNION ALL
    SELECT l.computation, 3, 'source',
           CASE
               WHEN g.source = 'inbox' AND o.what IS NOT NULL
               THEN format('%s: waits for the open transaction of %s', g.source, o.what)
               WHEN l.position ->> 'held_by' IS NOT NULL
               THEN format('row %s of %s, not acknowledged', l.position ->> 'held_by', g.source)
               WHEN g.source = 'inbox' THEN format('%s: time of the last look', g.source)
               ELSE format('%s: newest seen time less the lateness', g.source)
           END,
           NULL, l.low_watermark,
           CASE
               WHEN g.source = 'inbox' AND o.what IS NOT NULL THEN o.since
               ELSE {micros_to_time}((l.position ->> 'since')::bigint)
           END, NULL
    FROM {latest_commits} AS l
    JOIN {log} AS g ON g.interval_id = l.interval_id AND g.source IS NOT NULL
    LEFT JOIN open_transaction AS o ON true
    WHERE l.kind = 'injector'
), holders AS (
    SELECT DISTINCT ON (low.computation) low.low_watermark, c.*
    FROM low
    JOIN candidates AS c ON c.computation = low.computation
    -- The discovery of partitions promises what they do, and holds since no time: it stands behind the one it waits for.
    ORDER BY low.computation, c.hold, c.preference, c.since NULLS LAST, c.what
), path AS (
    SELECT computation AS waiting, computation AS reached, ARRAY[computation] AS along FROM holders
    UNION ALL
    SELECT p.waiting, h.sender, p.along || h.sender
    FROM path AS p
    JOIN holders AS h ON h.computation = p.reached
    WHERE h.sender IS NOT NULL
)
SELECT
    h.computation,
    {micros_to_time}(h.low_watermark) AS low_watermark,
    h.holder,
    h.what,
    h.key,
    CASE
        WHEN h.hold > 253402128000000000 - 1 THEN 'infinity'::timestamptz
        WHEN h.hold < -62135510400000000 THEN '-infinity'::timestamptz
        ELSE {micros_to_time}(h.hold::bigint)
    END AS held_at,
    clock_timestamp() - root.since AS age,
    p.along AS path,
    root.what AS root
FROM holders AS h
JOIN path AS p ON p.waiting = h.computation
JOIN holders AS root ON root.computation = p.reached AND root.sender IS NULL
WHERE h.low_watermark < 253402128000000000 -- at the end of time nothing is held
$$;
CREATE VIEW {watermark_holders} AS
SELECT
    h.computation, h.low_watermark, h.holder, h.what, h.key, h.held_at, h.age, h.path, h.root
FROM {find_holders}() AS h;
COMMENT ON VIEW {watermark_holders} IS 'The holder of each computation''s low watermark';
COMMENT ON COLUMN {watermark_holders}.computation IS 'name of the computation';
COMMENT ON COLUMN {watermark_holders}.low_watermark IS 'its stored low watermark';
COMMENT ON COLUMN {watermark_holders}.holder IS 'timer, state, record, input, source or parked';
COMMENT ON COLUMN {watermark_holders}.what IS 'the holder in words';
COMMENT ON COLUMN {watermark_holders}.key IS 'the holder''s key as JSON, if it has one';
COMMENT ON COLUMN {watermark_holders}.held_at IS 'the time at which it holds the watermark';
COMMENT ON COLUMN {watermark_holders}.age IS
    'age of the root: since its timer or hold was set, its record produced, or its row read';
COMMENT ON COLUMN {watermark_holders}.path IS
    'computations from this one upstream to that of the root';
COMMENT ON COLUMN {watermark_holders}.root IS 'the holder of the last computation in path'
