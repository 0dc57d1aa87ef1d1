-- What was deployed, one generation after the other.
SELECT number, code::text FROM {generation} ORDER BY number
