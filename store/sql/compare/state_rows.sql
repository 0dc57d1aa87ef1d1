-- States of some slots, as the view `states` shows them, of the wanted steps. A window's entry has its start in
-- its name.
SELECT
    true AS is_there, w.step, m.slot, m.key AS c0, m.entry AS c1, m.value AS c2, m.version AS c3,
    CASE WHEN m.entry ~ '^[a-z]+/-?[0-9]{{1,18}}$' THEN split_part(m.entry, '/', 2)::bigint END AS start
FROM (
    WITH tail AS MATERIALIZED (
        SELECT DISTINCT ON (x.slot, x.computation, x.key, x.entry)
            x.slot, x.computation, x.key, x.entry, x.value, x.version
        FROM {fold} AS f
        JOIN {key_interval} AS k ON k.id = f.interval_id AND k.slot_from < %(slot_to)s AND k.slot_to > %(slot_from)s
        CROSS JOIN LATERAL (
            SELECT * FROM {state_changes} AS c
            WHERE c.interval_id = f.interval_id AND c.n > f.through AND c.n < f.through + 1000000000
            OFFSET 0
        ) AS x
        WHERE x.slot >= %(slot_from)s AND x.slot < %(slot_to)s
        ORDER BY x.slot, x.computation, x.key, x.entry, x.n DESC
    )
    SELECT s.slot, s.computation, s.key, s.entry, s.value, s.version
    FROM {state} AS s
    WHERE s.slot >= %(slot_from)s AND s.slot < %(slot_to)s
      AND NOT EXISTS (
          SELECT FROM tail AS t
          WHERE t.slot = s.slot AND t.computation = s.computation AND t.key = s.key AND t.entry = s.entry
      )
    UNION ALL
    SELECT slot, computation, key, entry, value, version FROM tail WHERE value IS NOT NULL
) AS m
JOIN unnest({ids}::smallint[]) WITH ORDINALITY AS w (id, step) ON w.id = m.computation
