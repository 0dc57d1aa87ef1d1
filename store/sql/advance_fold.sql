-- Marks commits up to `through` as folded, if the interval is still ours and nothing is left
-- out; touches no row otherwise, and the fold is rolled back. More than `after` may be folded
-- already, by a fold of ours whose answer was lost: folding that part again changes nothing.
UPDATE {fold} AS f SET through = %(through)s
WHERE f.interval_id = %(interval_id)s AND f.through BETWEEN %(after)s AND %(through)s
  AND EXISTS (
      SELECT FROM {key_interval} AS k
      WHERE k.id = f.interval_id AND k.sequencer = %(sequencer)s
      FOR SHARE
  )
