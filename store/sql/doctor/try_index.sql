-- Part of a trial that is rolled back.
CREATE INDEX ON {parent} (value)
