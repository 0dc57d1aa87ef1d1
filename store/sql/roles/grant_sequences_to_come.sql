-- Lets a worker draw numbers of the sequences that a later migration makes.
ALTER DEFAULT PRIVILEGES FOR ROLE {maker} IN SCHEMA {schema} GRANT USAGE ON SEQUENCES TO {role}
