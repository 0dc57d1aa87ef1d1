-- Functions of a schema that belong to another role than the schema's own tables, as they are called in another schema.
SELECT format('%%I.%%I(%%s)', %(target)s::text, p.proname, pg_catalog.pg_get_function_identity_arguments(p.oid)),
       pg_catalog.pg_get_userbyid(p.proowner)::text
FROM pg_catalog.pg_proc AS p
WHERE p.pronamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s)
  AND pg_catalog.pg_get_userbyid(p.proowner) <> current_user
