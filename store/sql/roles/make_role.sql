-- Makes a role that cannot log in.
CREATE ROLE {role} NOLOGIN
