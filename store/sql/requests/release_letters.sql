-- Makes records in parked keys of computations that are being removed plain dead letters: no owner runs them any more.
UPDATE {dead_letter} SET parked = NULL, watermark = NULL, hold = NULL
WHERE computation = ANY(%(computations)s::smallint[]) AND parked IS NOT NULL
