-- A merged interval keeps sending what its parts had sent and nobody acknowledged.
UPDATE {log} SET interval_id = %(heir)s WHERE interval_id = ANY(%(interval_ids)s::bigint[])
