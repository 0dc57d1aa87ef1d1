INSERT INTO {timer} (slot, computation, key, kind, tag, due, hold, set_at)
SELECT s.slot, c.id, s.key, 'watermark', s.name, s.due, greatest(s.due, %(watermark)s), %(stamp)s
FROM {staging} AS s JOIN {computation} AS c ON c.name = s.receiver
WHERE s.kind = 'timers' AND s.{attempt} = ANY(%(staged)s::uuid[])
