-- The database of an embedded server.
CREATE DATABASE {database}
