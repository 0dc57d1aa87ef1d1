-- Numbers of records that are sent to both begin beyond all that the copy will bring along.
ALTER TABLE {copied} ALTER COLUMN seq RESTART WITH {first}
