-- Shown to an operator, and never run by a command.
GRANT USAGE, CREATE ON SCHEMA {schema} TO {role}
