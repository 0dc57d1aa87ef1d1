-- Makes the schema of published names.
CREATE SCHEMA IF NOT EXISTS {schema} AUTHORIZATION {owner}
