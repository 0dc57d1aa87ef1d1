-- Requests that are not carried out yet, and the bytes on disk by kind.
SELECT (SELECT count(*) FROM {request} WHERE outcome IS NULL) AS open_requests,
       (
           SELECT coalesce(jsonb_object_agg(d.kind, d.bytes), '{{}}')
           FROM (SELECT u.kind, sum(u.bytes) AS bytes FROM {disk_use} AS u GROUP BY u.kind) AS d
       )::text AS disk
