-- Shown to an operator, and never run by a command.
ALTER SYSTEM SET {parameter} = {value}
