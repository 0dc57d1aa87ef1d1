-- Lets a role see the names in the schema of a pipeline.
GRANT USAGE ON SCHEMA {schema} TO {role}
