-- The nodes of the deployed graph.
SELECT id, name FROM {computation} WHERE removed_at IS NULL
