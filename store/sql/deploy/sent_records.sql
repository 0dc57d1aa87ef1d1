-- Which of some computations have sent records of a stream that are not acknowledged yet.
SELECT w.sender, w.stream
FROM unnest(%(senders)s::text[], %(streams)s::text[]) AS w (sender, stream)
WHERE EXISTS (
    SELECT FROM {pending_productions} AS p WHERE p.sender = w.sender AND p.stream = w.stream
)
