-- Time of the last crash recovery. Each recovery discards the statistics of the server and notes when; a stop in
-- order keeps them. Of two kinds that an operator resets separately the older one counts. Other statements use it
-- as a subquery, (recovered_at).
SELECT coalesce(
    least(pg_stat_get_bgwriter_stat_reset_time(), (SELECT a.stats_reset FROM pg_stat_get_archiver() AS a)),
    '-infinity'
)
