-- Stores the server processes of a worker at once: a successor must find the holder of a lock even if the
-- worker stops before its next heartbeat (I4).
UPDATE {worker} SET backends = %(backends)s::jsonb WHERE id = %(id)s
