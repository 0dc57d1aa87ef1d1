-- Shown to an operator, and never run by a command.
SELECT pg_reload_conf()
