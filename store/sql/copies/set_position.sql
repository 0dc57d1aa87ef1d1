-- Sets a sequence of a copy to the position of the origin's.
SELECT pg_catalog.setval({sequence}::regclass, {value}, {is_called})
