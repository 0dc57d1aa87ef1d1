-- The row of a pipeline that nobody has run, and that does not write outside the store when it runs.
INSERT INTO {pipeline} (name, gc_watermark, withholds) VALUES (%(name)s, 0, true)
