-- The nodes of the newest deployed graph.
SELECT (code::jsonb -> 'graph' -> 'nodes')::text FROM {generation} ORDER BY number DESC LIMIT 1
