-- Gives a table or view the comment that it has in the origin.
COMMENT ON {kind} {relation} IS {comment}
