-- Makes the schema of a copy in another store, for this login.
CREATE SCHEMA {schema}
