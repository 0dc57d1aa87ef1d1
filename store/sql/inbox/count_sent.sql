-- Number of waiting records of a stream, up to a limit.
SELECT count(*) FROM (
    SELECT FROM {sent_record} AS s WHERE s.stream = %(stream)s LIMIT %(limit)s
) AS s
