-- Shown to an operator, and never run by a command.
GRANT CONNECT ON DATABASE {database} TO {role}
