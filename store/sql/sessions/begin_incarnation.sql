-- Names this incarnation of the server, unless another session was faster.
INSERT INTO {incarnation} ("row", id, began_at) VALUES (1, gen_random_uuid(), now())
ON CONFLICT DO NOTHING
