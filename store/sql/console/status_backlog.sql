-- Number of unacknowledged records, by receiving computation.
SELECT receiver, count(*) FROM {pending_productions} GROUP BY receiver
