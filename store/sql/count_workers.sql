-- Workers that run, or may: their leases are not over by the database's clock.
SELECT count(*) FROM {worker} WHERE NOT stopped AND lease_until > now()
