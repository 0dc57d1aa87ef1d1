-- Shown to an operator, and never run by a command.
ALTER ROLE {role} IN DATABASE {database} SET {parameter} = {value}
