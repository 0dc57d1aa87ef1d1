-- Marks commits up to `through` as folded, if nobody else folded in between and the
-- interval is still ours; touches no row otherwise, and the fold is rolled back.
UPDATE {fold} AS f SET through = %(through)s
WHERE f.interval_id = %(interval_id)s AND f.through = %(after)s
  AND EXISTS (
      SELECT FROM {key_interval} AS k
      WHERE k.id = f.interval_id AND k.sequencer = %(sequencer)s
      FOR SHARE
  )
