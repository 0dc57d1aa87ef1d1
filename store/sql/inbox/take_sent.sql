-- Takes the oldest records that wait in an inbox, and numbers them, which makes them rows of the injector's log.
--
-- The number is the record's identity from then on, so only the interval's owner may give it: the row lock
-- makes a claim wait, and after a claim there is nothing to lock. The statement does not wait for the disk: a
-- commit with effects of these rows is later in the WAL, so the numbers survive if the effects do.
--
-- `now` is no later than the snapshot, and this transaction gets its id (`newest`) after it. A transaction with
-- a higher id has begun after `now`, and so have its records: send() takes the id before the time. So once all
-- transactions before `newest` have ended, every record that appears later has a time of at least `now`. (The end
-- of a snapshot does not do in its place: it leaves out transactions that run with ids past the newest ended one.)
--
-- `after` spares the index entries of records that were taken before, which stay as long as any snapshot is open.
WITH fence AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true) FROM {key_interval} AS k
    WHERE k.id = %(interval_id)s AND k.sequencer = %(sequencer)s
        AND EXISTS (SELECT FROM {sent_record} AS s WHERE s.stream = %(stream)s AND s.seq > %(after)s)
    FOR SHARE OF k
), removed AS (
    DELETE FROM {sent_record} WHERE ctid = ANY (ARRAY(
        SELECT w.place FROM (
            SELECT s.ctid AS place, sum(length(s.value)) OVER (ORDER BY s.seq) - length(s.value) AS before
            FROM (
                SELECT s.ctid, s.seq, s.value FROM {sent_record} AS s
                WHERE s.stream = %(stream)s AND s.seq > %(after)s AND EXISTS (SELECT FROM fence)
                ORDER BY s.seq
                LIMIT %(limit)s
            ) AS s
        ) AS w
        WHERE w.before < %(characters)s
    ))
    RETURNING seq, value, ts
), taken AS (
    INSERT INTO {taken_record} (interval_id, number, value, ts)
    SELECT %(interval_id)s, %(first)s + row_number() OVER (ORDER BY r.seq) - 1, r.value, r.ts
    FROM removed AS r
    RETURNING number, value, ts
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
    coalesce(pg_sequence_last_value(%(sequence)s::regclass), 0) AS last_seq,
    t.number, t.value, t.ts
FROM (VALUES (1)) AS one LEFT JOIN taken AS t ON true
ORDER BY t.number
