INSERT INTO {state} (slot, computation, key, entry, value, version)
SELECT s.slot, c.id, s.key, s.name, s.value::jsonb, s.version
FROM {staging} AS s JOIN {computation} AS c ON c.name = s.receiver
WHERE s.kind = 'cells' AND s.{attempt} = ANY(%(staged)s::uuid[])
