-- The number of the newest dead letter; NULL: there is none.
SELECT max(d.id) FROM {dead_letter} AS d
