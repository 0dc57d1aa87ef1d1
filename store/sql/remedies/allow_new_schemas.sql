-- Shown to an operator, and never run by a command.
GRANT CREATE ON DATABASE {database} TO {role}
