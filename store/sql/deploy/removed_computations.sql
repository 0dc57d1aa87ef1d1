-- Removed nodes; their names are not used again.
SELECT name FROM {computation} WHERE removed_at IS NOT NULL
