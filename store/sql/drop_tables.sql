-- The tables of a dropped bucket.
DROP TABLE {tables}
