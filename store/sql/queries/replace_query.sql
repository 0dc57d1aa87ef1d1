-- Replaces the text of a query, which keeps its place among the others.
UPDATE {query}
SET text = %(text)s, avoided = %(avoided)s, steps = %(steps)s, targets = %(targets)s,
    revision = (SELECT max(revision) + 1 FROM {query}), generation = %(generation)s,
    submitted_at = now(), submitted_by = %(by)s
WHERE name = %(name)s AND dropped_at IS NULL
