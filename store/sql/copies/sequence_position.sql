-- Where a sequence is. Sequences have no snapshot: read after the rows, it is beyond all of them.
SELECT last_value, is_called FROM {sequence}
