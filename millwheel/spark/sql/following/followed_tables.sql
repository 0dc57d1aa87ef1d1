-- The numbered tables that sinks write, and the streams of which they write them.
SELECT DISTINCT sinks.key AS stream, sink.value ->> 'table' AS table_name
FROM (SELECT code FROM {generation} ORDER BY number DESC LIMIT 1) AS deployed
CROSS JOIN LATERAL jsonb_each(deployed.code -> 'graph' -> 'nodes') AS node
CROSS JOIN LATERAL jsonb_each(node.value -> 'sinks') AS sinks
CROSS JOIN LATERAL jsonb_array_elements(sinks.value) AS sink
WHERE sink.value -> 'columns' -> -1 ->> 0 = 'sequence'
    AND sink.value -> 'columns' -> -2 ->> 0 = 'sender'
ORDER BY stream, table_name
