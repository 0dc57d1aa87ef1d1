-- Copies the rows of a range of blocks.
INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE
SELECT {columns} FROM ONLY {like} WHERE ctid >= {low} AND ctid < {high}
