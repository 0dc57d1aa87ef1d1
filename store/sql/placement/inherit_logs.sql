-- A merged interval continues to send the unacknowledged productions of its parts.
UPDATE {log} SET interval_id = %(heir)s WHERE interval_id = ANY(%(interval_ids)s::bigint[])
