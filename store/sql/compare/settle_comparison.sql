-- Room for a page in memory, and an end for each statement: the rest of the time that the comparison has. A page is
-- read by the index: without statistics, as of a new savepoint, the planner would read the whole table for each. And it
-- is joined by a hash, which fits that room, where sorted pages would go to disk.
SELECT
    set_config('work_mem', '64MB', true), set_config('statement_timeout', %(timeout)s, true),
    set_config('enable_seqscan', %(whole)s, true), set_config('enable_mergejoin', %(whole)s, true)
