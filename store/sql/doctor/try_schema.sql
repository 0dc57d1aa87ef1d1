-- Part of a trial that is rolled back.
CREATE SCHEMA {schema}
