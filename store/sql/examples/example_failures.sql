-- Failed records by hour; an example for readers.
SELECT date_trunc('hour', given_up_at) AS hour, count(*) AS letters, count(DISTINCT key) AS keys
FROM {dead_letters}
GROUP BY hour
ORDER BY hour
