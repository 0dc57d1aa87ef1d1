-- How far two pipelines are: their least low watermarks, and the newest event time that the sources of the former have
-- shown, in microseconds, and the time. The position is JSON of `SourceProgress` (millwheel/core/source_progress.py).
SELECT
    (SELECT min(l.low_watermark) FROM {former_commits} AS l),
    (SELECT min(l.low_watermark) FROM {new_commits} AS l),
    (SELECT max((l.position ->> 'seen')::bigint) FROM {former_commits} AS l WHERE l.kind = 'injector'),
    extract(epoch FROM clock_timestamp())::float8
