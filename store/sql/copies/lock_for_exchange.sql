-- Ends all commits: they lock rows of intervals. A session that connects waits to read its incarnation, and reads that of
-- the schema that then has the name.
LOCK TABLE {key_interval}, {incarnation}, {sent_record}, {request} IN ACCESS EXCLUSIVE MODE
