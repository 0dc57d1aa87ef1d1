-- Shown to an operator, and never run by a command.
CREATE DATABASE {database} ENCODING 'UTF8' TEMPLATE template0
