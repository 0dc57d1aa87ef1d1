-- Until the end of the transaction, this session makes indexes alone: the other cores are for the
-- workers.
SET LOCAL max_parallel_maintenance_workers = 0
