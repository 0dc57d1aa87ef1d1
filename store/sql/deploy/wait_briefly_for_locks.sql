-- Readers and writers of a table wait as well, behind the one that waits to change it.
SET LOCAL lock_timeout = '2s'
