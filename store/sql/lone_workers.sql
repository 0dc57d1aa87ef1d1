-- Live workers who have a pipeline to themselves and look at no placement.
SELECT w.host, w.pid, w.pid_started FROM {worker} AS w
WHERE NOT w.stopped AND w.address = '' AND w.lease_until > now()
