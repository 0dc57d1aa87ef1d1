-- The comments of a view and its columns, as statements that give them again.
SELECT format(
    'COMMENT ON %%s IS %%L',
    CASE d.objsubid
        WHEN 0 THEN format('VIEW %%s', %(relation)s::text)
        ELSE format('COLUMN %%s.%%I', %(relation)s::text, a.attname)
    END, d.description
)
FROM pg_catalog.pg_description AS d
LEFT JOIN pg_catalog.pg_attribute AS a ON a.attrelid = d.objoid AND a.attnum = d.objsubid
WHERE d.classoid = 'pg_catalog.pg_class'::regclass AND d.objoid = pg_catalog.to_regclass(%(relation)s)
  AND (d.objsubid = 0 OR a.attname = ANY(%(columns)s::text[]))
ORDER BY d.objsubid
