-- Marks commits up to `through` as folded, if this worker still owns the interval and the fold leaves no
-- commit out. Otherwise it changes no row, and the fold is rolled back. More commits than `after` may be
-- folded already, if the answer of an earlier fold was lost: folding them again changes nothing.
UPDATE {fold} AS f SET through = %(through)s
WHERE f.interval_id = %(interval_id)s AND f.through BETWEEN %(after)s AND %(through)s
  AND EXISTS (
      SELECT FROM {key_interval} AS k
      WHERE k.id = f.interval_id AND k.sequencer = %(sequencer)s
      FOR SHARE
  )
