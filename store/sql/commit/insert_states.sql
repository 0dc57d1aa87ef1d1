-- Appends changed entries of states of a small bundle, as columns. Values come as texts: the text null is a value of user
-- code, a missing value is a removed entry.
INSERT INTO {table} (interval_id, n, computation, version, slots, keys, entries, values)
SELECT x.interval_id, x.n, x.computation, x.version, x.slots, x.keys, x.entries, x.values::jsonb[]
FROM jsonb_to_recordset(%(rows)s::jsonb) AS x (
    interval_id bigint, n bigint, computation smallint, version smallint, slots integer[], keys text[],
    entries text[], values text[]
)
