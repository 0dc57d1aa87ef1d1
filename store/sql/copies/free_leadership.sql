-- No worker leads a copy.
UPDATE {leader} SET worker = NULL, lease_until = '-infinity'
