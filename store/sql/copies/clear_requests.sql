-- The log of operators is that of the pipeline as it was until now.
DELETE FROM {request}
