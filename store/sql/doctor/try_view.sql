-- Part of a trial that is rolled back.
CREATE VIEW {view} AS SELECT p.id FROM {parent} AS p
