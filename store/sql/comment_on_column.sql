-- What a reader of the schema sees beside a column of a view of state.
COMMENT ON COLUMN {view}.{column} IS {comment}
