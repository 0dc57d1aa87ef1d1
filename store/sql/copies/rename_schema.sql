-- Gives a schema another name; tables and views stay the same ones.
ALTER SCHEMA {schema} RENAME TO {renamed}
