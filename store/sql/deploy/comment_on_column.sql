-- The description of a column of a state view, for readers of the schema.
COMMENT ON COLUMN {view}.{column} IS {comment}
