-- Makes the secret, unless another worker has made it: 366 random bits of three version-4 UUIDs, hashed to
-- 32 bytes.
INSERT INTO {peer_secret} (single, secret)
VALUES (
    true,
    sha256(
        uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())
    )
)
ON CONFLICT DO NOTHING
