-- Marks drained logs, which are never read again.
UPDATE {log} SET retired = true WHERE id = ANY(%(logs)s::bigint[])
