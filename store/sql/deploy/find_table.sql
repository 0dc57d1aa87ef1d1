-- Whether a table exists, given by its quoted name.
SELECT to_regclass(%(table)s) IS NOT NULL
