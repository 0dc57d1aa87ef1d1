-- Appends the numbers of rows and strong productions whose effects this commit makes durable, as runs (decision 69). A
-- run that has a number in common with a stored one gets no first number, which is refused: dedup has failed, and the
-- commit must fail with it (I2).
INSERT INTO {table} (log, last, first, computation, present)
SELECT
    r.log, r.last,
    CASE WHEN NOT EXISTS (
        SELECT FROM {table} AS s
        CROSS JOIN LATERAL (
            SELECT greatest(r.first, s.first) AS begins, least(r.last, s.last) + 1 AS ends
        ) AS both_have
        CROSS JOIN LATERAL (
            SELECT
                substring(
                    r.present FROM (begins - r.first)::integer + 1 FOR (ends - begins)::integer
                ) AS new,
                substring(
                    s.present FROM (begins - s.first)::integer + 1 FOR (ends - begins)::integer
                ) AS stored
        ) AS bits
        WHERE s.computation = r.computation AND s.log = r.log
          AND s.last >= r.first AND s.last < r.last + 4096 AND s.first <= r.last
          AND coalesce(bit_count(coalesce(new & stored, new, stored)) > 0, true)
    ) THEN r.first END,
    r.computation, r.present
FROM unnest(
    %(computation)s::smallint[], %(log)s::bigint[], %(first)s::bigint[], %(last)s::bigint[],
    %(present)s::varbit[]
) AS r (computation, log, first, last, present)
