-- Deletes the records that the snapshot sees: they are copied. Later ones stay.
DELETE FROM {sent_record}
