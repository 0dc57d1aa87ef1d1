-- State of one computation in columns: its plain part, or one of its collections.
CREATE OR REPLACE VIEW {view} AS
SELECT {columns}
FROM {states} AS s
WHERE s.computation = {computation} AND {rows}
