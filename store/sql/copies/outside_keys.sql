-- Foreign keys of other schemas that hold on to tables of this one.
SELECT format('the foreign key %%s of %%s', k.conname, k.conrelid::regclass)
FROM pg_catalog.pg_constraint AS k
JOIN pg_catalog.pg_class AS t ON t.oid = k.confrelid
JOIN pg_catalog.pg_class AS c ON c.oid = k.conrelid
WHERE k.contype = 'f' AND c.relnamespace <> t.relnamespace
  AND t.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s)
ORDER BY 1
