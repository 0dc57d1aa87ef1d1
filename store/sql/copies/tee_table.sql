-- Makes the table of an inbox's records for a copy that is still to be made.
CREATE TABLE {copied} (LIKE {like} INCLUDING ALL)
