-- Forgets what has blocked a worker: its code has ended, and the worker has kept its intervals.
DELETE FROM {blocking_item} WHERE worker = %(worker)s
