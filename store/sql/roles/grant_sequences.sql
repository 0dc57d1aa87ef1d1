-- Lets a worker draw numbers of all sequences that there are.
GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {role}
