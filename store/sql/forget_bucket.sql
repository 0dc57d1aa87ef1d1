-- Deletes the row of a bucket; its tables are dropped in the same transaction.
DELETE FROM {bucket} WHERE id = %(id)s
