INSERT INTO {spark_query} (
    checkpoint, levels, begins_with, sender, batch, low_watermark, output_watermark, counters, table_rows, began_at,
    changed_at
)
SELECT
    %(checkpoint)s, %(levels)s, %(begins_with)s, nextval(pg_get_serial_sequence(%(intervals)s, 'id')), -1,
    %(low)s, %(low)s, coalesce(jsonb_object_agg(c.computation, c.counters), '{{}}'), '{{}}', now(), now()
FROM (
    SELECT n.computation, jsonb_object_agg(n.name, n.total) AS counters
    FROM (
        SELECT l.computation, e.key AS name, sum(e.value::numeric)::bigint AS total
        FROM {latest_commits} AS l CROSS JOIN LATERAL jsonb_each_text(l.counters) AS e
        GROUP BY 1, 2
    ) AS n
    GROUP BY 1
) AS c
