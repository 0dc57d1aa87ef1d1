-- Timers of some slots, as the view `timers` shows them, of the wanted steps.
SELECT true AS is_there, w.step, m.slot, m.key AS c0, m.kind AS c1, m.tag AS c2, m.due AS c3
FROM (
    WITH tail AS MATERIALIZED (
        SELECT DISTINCT ON (x.slot, x.computation, x.key, x.kind, x.tag)
            x.slot, x.computation, x.key, x.kind, x.tag, x.due
        FROM {fold} AS f
        JOIN {key_interval} AS k ON k.id = f.interval_id AND k.slot_from < %(slot_to)s AND k.slot_to > %(slot_from)s
        CROSS JOIN LATERAL (
            SELECT * FROM {timer_change} AS c
            WHERE c.interval_id = f.interval_id AND c.n > f.through AND c.n < f.through + 1000000000
            OFFSET 0
        ) AS x
        WHERE x.slot >= %(slot_from)s AND x.slot < %(slot_to)s
        ORDER BY x.slot, x.computation, x.key, x.kind, x.tag, x.n DESC
    )
    SELECT s.slot, s.computation, s.key, s.kind, s.tag, s.due
    FROM {timer} AS s
    WHERE s.slot >= %(slot_from)s AND s.slot < %(slot_to)s
      AND NOT EXISTS (
          SELECT FROM tail AS t
          WHERE t.slot = s.slot AND t.computation = s.computation AND t.key = s.key
            AND t.kind = s.kind AND t.tag = s.tag
      )
    UNION ALL
    SELECT slot, computation, key, kind, tag, due FROM tail WHERE due IS NOT NULL
) AS m
JOIN unnest({ids}::smallint[]) WITH ORDINALITY AS w (id, step) ON w.id = m.computation
