-- The description of a state view, for readers of the schema.
COMMENT ON VIEW {view} IS {comment}
