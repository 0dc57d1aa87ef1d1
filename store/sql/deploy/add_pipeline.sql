-- The row of a pipeline that is deployed for the first time; one that takes the place of another has it already.
INSERT INTO {pipeline} (name, gc_watermark) VALUES (%(name)s, 0) ON CONFLICT (name) DO NOTHING
