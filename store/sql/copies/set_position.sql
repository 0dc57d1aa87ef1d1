-- Lets a sequence of a copy go on from there.
SELECT pg_catalog.setval({sequence}::regclass, {value}, {is_called})
