-- Their ids, so that a repeat still has no second effect. Ids of other records are free again: those can be sent again.
INSERT INTO {restored} SELECT i.*
FROM {replaced} AS i
JOIN unnest(%(streams)s::smallint[], %(digests)s::bytea[]) AS d (stream, digest)
    ON d.stream = i.stream AND d.digest = i.digest
ON CONFLICT DO NOTHING
