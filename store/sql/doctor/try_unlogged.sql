-- Part of a trial that is rolled back.
CREATE UNLOGGED TABLE {unlogged} (id bigint)
