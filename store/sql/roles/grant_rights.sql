-- Gives a role rights on a table.
GRANT {rights} ON {table} TO {role}
