-- Lets a role read the buckets and tables to come; all of them are made by the role that runs this, the owner.
ALTER DEFAULT PRIVILEGES IN SCHEMA {schema} GRANT SELECT ON TABLES TO {role}
