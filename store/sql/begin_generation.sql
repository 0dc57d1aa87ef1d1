-- From now on this is what is deployed.
INSERT INTO {generation} (number, code, began_at) VALUES (%(number)s, %(code)s::jsonb, now())
