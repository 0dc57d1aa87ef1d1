-- Gives the planner figures of a new table.
ANALYZE {table}
