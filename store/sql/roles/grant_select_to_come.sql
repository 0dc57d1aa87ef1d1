-- Lets a role read the buckets and tables that another role will make.
ALTER DEFAULT PRIVILEGES FOR ROLE {maker} IN SCHEMA {schema} GRANT SELECT ON TABLES TO {role}
