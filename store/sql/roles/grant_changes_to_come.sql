-- Lets a worker change the rows of the tables that a later migration makes.
ALTER DEFAULT PRIVILEGES FOR ROLE {maker} IN SCHEMA {schema} GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {role}
