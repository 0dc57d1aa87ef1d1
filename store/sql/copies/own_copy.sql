-- Makes rows that were copied those of a pipeline of its own, which nobody has run.
UPDATE {pipeline}
SET name = %(name)s, id = gen_random_uuid(), origin = %(origin)s, copied_at = %(copied_at)s, keep_until = %(keep_until)s,
    restore_point = %(restore_point)s, withholds = %(withholds)s
