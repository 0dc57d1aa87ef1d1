-- Gives the schema of a pipeline to a role.
ALTER SCHEMA {schema} OWNER TO {role}
