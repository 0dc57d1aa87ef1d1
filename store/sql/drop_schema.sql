-- Removes a pipeline with everything in its schema.
DROP SCHEMA {schema} CASCADE
