-- Whether this login sees the sessions of others.
SELECT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')
