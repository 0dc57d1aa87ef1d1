-- Shown to an operator, and never run by a command.
ALTER ROLE {role} CONNECTION LIMIT -1
