-- Lets a role read all tables and views that there are.
GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}
