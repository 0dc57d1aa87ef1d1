-- Raises the sequencers of free intervals before a split or a merge: commits under the old sequencer are
-- refused, and commits on the wire are waited for (I4).
WITH free AS MATERIALIZED (
    SELECT k.id
    FROM {key_interval} AS k
    JOIN unnest(%(interval_ids)s::bigint[], %(sequencers)s::bigint[]) AS x (id, sequencer)
        ON x.id = k.id AND x.sequencer = k.sequencer
    WHERE k.owner IS NULL
    ORDER BY k.id
    FOR UPDATE OF k
)
UPDATE {key_interval} AS k
SET sequencer = nextval(%(sequence)s::regclass), split_at = NULL, merge_with = NULL
FROM free AS f
WHERE k.id = f.id
RETURNING k.id
