-- Part of a trial that is rolled back.
CREATE TABLE {parent} (id bigint PRIMARY KEY, value jsonb NOT NULL)
