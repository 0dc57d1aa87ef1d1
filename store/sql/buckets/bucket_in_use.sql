-- Whether the bucket has a commit that is not folded, or is the last one of its interval.
SELECT EXISTS (
    SELECT
    FROM {key_interval} AS k
    JOIN {fold} AS f ON f.interval_id = k.id
    CROSS JOIN LATERAL (
        SELECT max(r.n) AS n FROM {table} AS r WHERE r.interval_id = k.id
    ) AS here
    WHERE here.n IS NOT NULL
      AND (
          here.n > f.through
          OR NOT EXISTS (
              SELECT FROM {commit_record} AS c WHERE c.interval_id = k.id AND c.n > here.n
          )
      )
)
