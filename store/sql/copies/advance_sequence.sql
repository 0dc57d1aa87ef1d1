-- Lets a sequence go on beyond the numbers that another one has given.
SELECT pg_catalog.setval(
    {sequence}::regclass, greatest(restored.last_value, replaced.last_value), restored.is_called OR replaced.is_called
)
FROM {restored} AS restored, {replaced} AS replaced
