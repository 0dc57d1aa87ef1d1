-- The text of load.sql in a savepoint in files.
\set ON_ERROR_STOP on
BEGIN;
SET LOCAL client_encoding = 'UTF8';
SET LOCAL datestyle = 'ISO';
SET LOCAL intervalstyle = 'postgres';
SET LOCAL timezone = 'UTC';
CREATE SCHEMA {schema};
SET LOCAL search_path = {schema};
\o /dev/null
{statements}
\o
COMMIT;
