-- The removed nodes among some names.
SELECT id, name FROM {computation}
WHERE removed_at IS NOT NULL AND name = ANY(%(names)s::text[])
