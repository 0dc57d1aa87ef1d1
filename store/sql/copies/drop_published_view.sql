-- Drops a view, unless other objects use it.
DROP VIEW {view}
