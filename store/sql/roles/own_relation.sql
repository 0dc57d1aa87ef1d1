-- Gives a table, a view or a sequence to a role.
ALTER TABLE {relation} OWNER TO {role}
