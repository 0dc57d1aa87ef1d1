-- The table of a bucket of seen ids, for a stretch of a replayable source or of user-supplied ids.
CREATE TABLE {seen_record_new} (LIKE {seen_record} INCLUDING STORAGE, PRIMARY KEY (computation, id, slot));
ALTER TABLE {seen_record_new} INHERIT {seen_record}
