-- Part of a trial that is rolled back: a table as a bucket is.
CREATE TABLE {bucket} (PRIMARY KEY (id)) INHERITS ({parent})
