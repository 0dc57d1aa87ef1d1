-- Sends records to a stream; the number of those that are new.
SELECT count(*) FILTER (WHERE x)
FROM unnest({send_all}(%(stream)s, %(records)s::text[]::jsonb[], %(ids)s::text[], %(times)s::timestamptz[])) AS x
