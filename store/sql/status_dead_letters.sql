-- Per computation, how many dead letters are kept.
SELECT computation, count(*) FROM {dead_letters} GROUP BY computation
