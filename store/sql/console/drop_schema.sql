-- Removes a pipeline with all objects in its schema.
DROP SCHEMA {schema} CASCADE
