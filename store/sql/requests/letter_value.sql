-- The value of a dead letter with a key.
SELECT d.value FROM {dead_letter} AS d WHERE d.id = %(id)s AND d.key IS NOT NULL
