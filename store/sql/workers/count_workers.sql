-- Number of workers with a valid lease by the database's clock.
SELECT count(*) FROM {worker} WHERE NOT stopped AND lease_until > now()
