-- Whether any record is sent and not acknowledged.
SELECT EXISTS (SELECT FROM {pending_productions})
