-- Of rows with one key the last one counts.
INSERT INTO {target} ({columns})
SELECT DISTINCT ON ({key}) {columns} FROM ({rows}) AS rows ORDER BY {key}, seq DESC
ON CONFLICT ({key}) DO {conflict}
