-- Stores the code that begins a generation, and the incarnation of the server in which it does.
INSERT INTO {generation} (number, code, began_at, incarnation)
SELECT %(number)s, %(code)s::jsonb, now(), ({this_incarnation})
