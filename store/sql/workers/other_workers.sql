-- Workers that may still hold intervals, with the remaining seconds of their leases.
SELECT id::text, host, pid, pid_started, backends::text,
       greatest(0, extract(epoch FROM lease_until - now()))::float8 AS lease_left
FROM {worker}
WHERE NOT stopped
