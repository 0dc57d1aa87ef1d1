-- Takes all rights on a table from a role.
REVOKE ALL ON {table} FROM {role}
