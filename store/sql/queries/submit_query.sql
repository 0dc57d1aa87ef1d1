-- Adds a query, in the transaction that begins its generation.
INSERT INTO {query} (
    name, text, avoided, steps, targets, revision, generation, submitted_at, submitted_by
)
SELECT %(name)s, %(text)s, %(avoided)s, %(steps)s, %(targets)s,
       coalesce(max(revision), 0) + 1, %(generation)s, now(), %(by)s
FROM {query}
