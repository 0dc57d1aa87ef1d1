-- Per computation, how many records were sent to it and are not known to be processed.
SELECT receiver, count(*) FROM {pending_productions} GROUP BY receiver
