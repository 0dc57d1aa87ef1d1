-- Drained logs are never looked at again.
UPDATE {log} SET retired = true WHERE id = ANY(%(logs)s::bigint[])
