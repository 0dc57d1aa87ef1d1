-- Notes what an operator has done, in the transaction that does it.
INSERT INTO {request} (batch, asked_at, actor, reason, verb, payload, due_at, outcome, settled_at)
VALUES (%(batch)s, now(), %(actor)s, %(reason)s, %(verb)s, %(payload)s::jsonb, now(), 'done', now())
