-- The row of a pipeline that is deployed for the first time.
INSERT INTO {pipeline} (name, gc_watermark) VALUES (%(name)s, 0)
