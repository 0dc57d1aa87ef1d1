-- Partitions of sources whose first rows are gone, as far as workers have told.
SELECT p.injector, p.partition, p.log_start FROM {source_partitions} AS p WHERE p.log_start > 0 ORDER BY 1, 2
