-- What keeps each computation's low watermark from moving on.
SELECT computation, holder, what, key::text, held_at::text FROM {watermark_holders}
