-- The last delivered bundle of each scope of a sink outside the store.
SELECT sink, scope, acked FROM {sinks} WHERE acked IS NOT NULL ORDER BY sink, scope
