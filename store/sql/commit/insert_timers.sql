-- Appends timers that a bundle has set, fired or cancelled (due is NULL).
INSERT INTO {table} (interval_id, n, computation, slot, key, kind, tag, due, hold, set_at)
SELECT
    x.interval_id, x.n, x.computation, x.slot, x.key, x.kind, x.tag, x.due, x.hold, x.set_at
FROM jsonb_to_recordset(%(rows)s::jsonb) AS x (
    interval_id bigint, n bigint, computation smallint, slot integer, key text, kind text, tag text,
    due bigint, hold bigint, set_at bigint
)
