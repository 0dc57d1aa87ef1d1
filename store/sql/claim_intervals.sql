-- Takes intervals over: raises their sequencers first, which waits for or fails every
-- commit of the owner before (I4). Only after this transaction may anything be read. Wishes to cut
-- were decided from how it was; they end here.
UPDATE {key_interval} AS k
SET sequencer = nextval(%(sequence)s::regclass), owner = %(owner)s, split_at = NULL, merge_with = NULL
WHERE k.id = ANY(%(interval_ids)s::bigint[])
RETURNING k.id, k.sequencer
