-- Sends records of the origin's inboxes to the copy too, in the sender's transaction.
CREATE FUNCTION {tee_sent}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $tee$
BEGIN
    INSERT INTO {copied} (stream, value, ts) SELECT s.stream, s.value, s.ts FROM added AS s ORDER BY s.seq;
    RETURN NULL;
END
$tee$
