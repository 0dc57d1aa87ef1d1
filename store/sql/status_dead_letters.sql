-- Number of stored dead letters, by computation.
SELECT computation, count(*) FROM {dead_letters} GROUP BY computation
