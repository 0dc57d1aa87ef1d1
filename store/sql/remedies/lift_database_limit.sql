-- Shown to an operator, and never run by a command.
ALTER DATABASE {database} CONNECTION LIMIT -1
