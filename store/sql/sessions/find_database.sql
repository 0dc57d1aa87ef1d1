-- Whether the server has a database of this name.
SELECT EXISTS (SELECT FROM pg_catalog.pg_database WHERE datname = %(name)s)
