SELECT pg_catalog.pg_export_snapshot()
