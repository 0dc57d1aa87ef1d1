-- Number of rows of a part of a statement (together.sql).
SELECT count(*) FROM {part}
