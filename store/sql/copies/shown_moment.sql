-- The moment that a copy of this pipeline shows; the first query of its snapshot.
SELECT CASE WHEN %(is_savepoint)s THEN copied_at ELSE clock_timestamp() END FROM {pipeline}
