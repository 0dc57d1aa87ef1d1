-- The type of a stream's values by the newest code, as a JSON schema.
SELECT deployed.code -> 'streams' -> %(stream)s -> 1
FROM (SELECT code FROM {generation} ORDER BY number DESC LIMIT 1) AS deployed
WHERE deployed.code -> 'streams' ? %(stream)s
