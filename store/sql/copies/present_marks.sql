-- Marks of a pipeline that it keeps when it is restored, and the database's time.
SELECT withholds, clock_timestamp() FROM {pipeline}
