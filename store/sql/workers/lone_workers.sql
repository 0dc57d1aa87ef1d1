-- Live workers that have a pipeline to themselves and do not read the placement.
SELECT w.host, w.pid, w.pid_started FROM {worker} AS w
WHERE NOT w.stopped AND w.address = '' AND w.lease_until > now()
