-- Shown to an operator, and never run by a command.
CREATE ROLE {role} LOGIN PASSWORD {value}
