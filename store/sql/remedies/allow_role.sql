-- Shown to an operator, and never run by a command.
GRANT {granted} TO {role}
