-- Room for a page in memory, and an end for each statement: the rest of the time that the comparison has.
SELECT set_config('work_mem', '64MB', true), set_config('statement_timeout', %(timeout)s, true)
