-- The workers that run the pipeline live on.
INSERT INTO {restored} SELECT * FROM {replaced} WHERE NOT stopped
