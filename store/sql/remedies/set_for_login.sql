-- Shown to an operator, and never run by a command.
ALTER ROLE {role} SET {parameter} = {value}
