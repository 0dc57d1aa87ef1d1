-- Whether an interval has not been claimed since.
SELECT EXISTS (
    SELECT FROM {key_interval} AS k WHERE k.id = %(interval_id)s AND k.sequencer = %(sequencer)s
)
