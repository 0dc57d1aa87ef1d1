-- A commit that waits for the disk as a worker's does. It writes a note to the WAL, and changes no data.
SELECT pg_logical_emit_message(true, 'millwheel', 'doctor')
