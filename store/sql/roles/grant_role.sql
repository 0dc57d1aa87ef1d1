-- Gives a role the rights of another one.
GRANT {other} TO {role}
