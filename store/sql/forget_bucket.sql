-- The bucket's tables are dropped in the same transaction.
DELETE FROM {bucket} WHERE id = %(id)s
