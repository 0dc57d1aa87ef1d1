CREATE UNLOGGED TABLE {staging} ({columns}, {attempt} uuid NOT NULL);
CREATE UNLOGGED TABLE {batches} (batch uuid PRIMARY KEY, attempts uuid[] NOT NULL, rows bigint NOT NULL)
