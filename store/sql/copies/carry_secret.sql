-- Workers have read their secret when they started.
INSERT INTO {restored} SELECT * FROM {replaced}
