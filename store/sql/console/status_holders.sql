-- The holder of each computation's low watermark.
SELECT computation, holder, what, key::text, held_at::text, extract(epoch FROM age)::float8,
       path, root
FROM {watermark_holders}
