-- What a reader of the schema sees beside a view of state.
COMMENT ON VIEW {view} IS {comment}
