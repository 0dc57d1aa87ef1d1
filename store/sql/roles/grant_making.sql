-- Lets a worker make tables and views.
GRANT USAGE, CREATE ON SCHEMA {schema} TO {role}
