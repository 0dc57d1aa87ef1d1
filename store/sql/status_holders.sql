-- What keeps each computation's low watermark from moving on.
SELECT computation, holder, what, key::text, held_at::text, extract(epoch FROM age)::float8,
       path, root
FROM {watermark_holders}
