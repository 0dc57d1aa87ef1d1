-- Shown to an operator, and never run by a command.
CREATE SCHEMA {schema}
