-- Several statements as one, which is a transaction of its own; answers with the number of rows that the
-- fences among them appended.
WITH {parts}
SELECT {fences}
