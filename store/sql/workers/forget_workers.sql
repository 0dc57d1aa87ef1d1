-- Removes workers whose lease ended long ago.
DELETE FROM {worker} WHERE lease_until < now() - interval '1 day'
