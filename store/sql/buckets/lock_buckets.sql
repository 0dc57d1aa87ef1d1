-- Serializes opening and closing of buckets, so that each change sees the newest bucket (the next statement has a later
-- snapshot). Only a worker may take this lock; an advisory one is free to every login of the database.
LOCK TABLE {bucket} IN EXCLUSIVE MODE
