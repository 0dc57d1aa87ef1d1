-- Marks nodes as removed, so that no node waits for them; gives their ids.
WITH others AS (
    UPDATE {computation} SET upstream = upstream - %(names)s::text[]
    WHERE upstream ?| %(names)s::text[] AND name <> ALL(%(names)s::text[])
)
UPDATE {computation} SET removed_at = now() WHERE name = ANY(%(names)s::text[])
RETURNING id
