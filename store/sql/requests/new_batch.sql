-- A number for the requests that are asked together.
SELECT nextval(pg_get_serial_sequence(%(table)s, 'id'))
