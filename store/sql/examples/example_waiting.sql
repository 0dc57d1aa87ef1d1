-- Where sent records wait; an example for readers.
SELECT receiver, sender, count(*) AS records, min(produced_at) AS oldest
FROM {pending_productions}
GROUP BY receiver, sender
ORDER BY records DESC
