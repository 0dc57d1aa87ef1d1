-- Names this incarnation of the server, unless another session was faster. The clock may have gone back since the
-- server recovered.
INSERT INTO {incarnation} AS i ("row", id, began_at)
VALUES (1, gen_random_uuid(), greatest(now(), ({recovered_at})))
ON CONFLICT ("row") DO UPDATE
SET id = excluded.id, began_at = excluded.began_at
WHERE i.began_at < ({recovered_at})
