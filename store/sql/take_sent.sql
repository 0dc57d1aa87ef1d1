-- Numbers the oldest waiting records of a stream, which makes them rows of the injector's log.
--
-- The number is the record's identity from then on, so only the interval's owner may give it: the row lock
-- makes a claim wait, and after a claim there is nothing to lock. The statement does not wait for the disk: a
-- commit with effects of these rows is later in the WAL, so the numbers survive if the effects do.
--
-- `now` is no later than the snapshot, and this transaction gets its id (`newest`) after it. A transaction with
-- a higher id has begun after `now`, and so have its records: send() takes the id before the time. So once all
-- transactions before `newest` have ended, every record that appears later has a time of at least `now`. (The end
-- of a snapshot does not do in its place: it leaves out transactions that run with ids past the newest ended one.)
WITH waiting AS (
    SELECT s.ctid AS place, s.seq FROM {sent_record} AS s
    WHERE s.stream = %(stream)s AND s.number IS NULL
    ORDER BY s.seq
    LIMIT %(limit)s
), fence AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true) FROM {key_interval} AS k
    WHERE k.id = %(interval_id)s AND k.sequencer = %(sequencer)s AND EXISTS (SELECT FROM waiting)
    FOR SHARE OF k
), taken AS (
    UPDATE {sent_record} AS s SET number = w.number
    FROM (
        SELECT w.place, %(first)s + row_number() OVER (ORDER BY w.seq) - 1 AS number FROM waiting AS w
    ) AS w
    WHERE s.ctid = w.place AND EXISTS (SELECT FROM fence)
    RETURNING s.number, s.value, s.ts
)
SELECT
    EXISTS (
        SELECT FROM {key_interval} AS k
        WHERE k.id = %(interval_id)s AND k.sequencer = %(sequencer)s
    ) AS owned,
    (extract(epoch FROM statement_timestamp()) * 1000000)::bigint AS now,
    pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS oldest,
    CASE
        WHEN %(mark)s OR EXISTS (SELECT FROM fence) THEN pg_current_xact_id()::text::bigint
    END AS newest,
    t.number, t.value, t.ts
FROM (VALUES (1)) AS one LEFT JOIN taken AS t ON true
ORDER BY t.number
