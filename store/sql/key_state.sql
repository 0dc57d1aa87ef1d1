-- The state of one key, by its entries.
SELECT entry, value::text, version FROM {state_of}(%(computation)s, %(key)s::jsonb, %(slot)s)
