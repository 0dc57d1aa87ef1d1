-- Appends changed state entries of a small bundle. Values come as texts: the text null is a value of user
-- code, a missing value is a removed entry.
INSERT INTO {table} (interval_id, n, computation, slot, key, entry, value, version)
SELECT x.interval_id, x.n, x.computation, x.slot, x.key, x.entry, x.value::jsonb, x.version
FROM jsonb_to_recordset(%(rows)s::jsonb) AS x (
    interval_id bigint, n bigint, computation smallint, slot integer, key text, entry text,
    value text, version smallint
)
