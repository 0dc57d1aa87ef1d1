-- Makes the schema of a copy for the owner of the origin's tables.
CREATE SCHEMA {schema} AUTHORIZATION {owner}
