-- Requests that nobody has carried out before the pipeline was restored.
UPDATE {request} SET outcome = 'refused', detail = %(detail)s, settled_at = clock_timestamp() WHERE outcome IS NULL
