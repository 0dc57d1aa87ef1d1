-- Changes of owners by minute; an example for readers.
SELECT date_trunc('minute', at) AS minute, count(*) AS changes
FROM {placement_events}
GROUP BY minute
ORDER BY minute
