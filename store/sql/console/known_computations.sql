-- The nodes of the graph, and those that were removed: their dead letters stay.
SELECT name FROM {computation} ORDER BY id
