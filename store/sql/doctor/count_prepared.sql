-- Number of prepared statements of the session.
SELECT count(*) FROM pg_catalog.pg_prepared_statements
