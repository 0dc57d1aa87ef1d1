-- Looks at one key that cost no more with more keys: by the primary keys, and through the unfolded changes of the one
-- interval that has the key.
--
-- They plan once a session, since a plan costs more than a look. Their last argument is the slot, for callers that know it: SQL computes it for keys of up to 240 bytes.
--
-- The key as the tables have it, and its computation; an error tells a name that does not exist.
CREATE OR REPLACE FUNCTION {sought_key}(computation text, key jsonb, slot integer)
RETURNS TABLE (computation_id smallint, key_slot integer, key_text text, interval_id bigint)
LANGUAGE plpgsql STABLE ROWS 1 SET plan_cache_mode TO force_generic_plan AS $$
DECLARE
    place CONSTANT integer := coalesce($3, {slot_of}($2));
BEGIN
    RETURN QUERY
    SELECT c.id, place, {key_text}($2), k.id
    FROM {computation} AS c
    LEFT JOIN {key_interval} AS k ON k.computation = c.id AND k.slot_from <= place AND place < k.slot_to
    WHERE c.name = $1 AND c.removed_at IS NULL;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the pipeline has no computation %', quote_literal($1) USING HINT = (
            SELECT 'It has ' || string_agg(c.name, ', ' ORDER BY c.id)
            FROM {computation} AS c WHERE c.removed_at IS NULL
        );
    END IF;
END
$$;
CREATE OR REPLACE FUNCTION {state_of}(computation text, key jsonb, slot integer DEFAULT NULL)
RETURNS TABLE (entry text, value jsonb, version smallint)
LANGUAGE plpgsql STABLE SET plan_cache_mode TO force_generic_plan SET jit TO off AS $$
#variable_conflict use_column
DECLARE
    sought record;
BEGIN
    SELECT * INTO sought FROM {sought_key}($1, $2, $3);
    RETURN QUERY
    WITH tail AS MATERIALIZED (
        SELECT DISTINCT ON (c.entry) c.entry, c.value, c.version
        FROM {fold} AS f
        CROSS JOIN LATERAL (
            SELECT * FROM {state_changes} AS r
            WHERE r.interval_id = f.interval_id AND r.n > f.through AND r.n < f.through + 1000000000
            OFFSET 0
        ) AS c
        WHERE f.interval_id = sought.interval_id
          AND c.slot = sought.key_slot AND c.computation = sought.computation_id AND c.key = sought.key_text
        ORDER BY c.entry, c.n DESC
    )
    SELECT s.entry, s.value, s.version
    FROM {state} AS s
    WHERE s.slot = sought.key_slot AND s.computation = sought.computation_id AND s.key = sought.key_text
      AND s.entry NOT IN (SELECT t.entry FROM tail AS t)
    UNION ALL
    SELECT t.entry, t.value, t.version FROM tail AS t WHERE t.value IS NOT NULL
    ORDER BY 1;
END
$$;
COMMENT ON FUNCTION {state_of}(text, jsonb, integer) IS
    'The state of one key, by its entries: state_of(''counts'', ''"cat"''). As in the view states, at this snapshot';
CREATE OR REPLACE FUNCTION {timers_of}(computation text, key jsonb, slot integer DEFAULT NULL)
RETURNS TABLE (kind text, tag text, due timestamptz, hold timestamptz, set_at timestamptz)
LANGUAGE plpgsql STABLE SET plan_cache_mode TO force_generic_plan SET jit TO off AS $$
#variable_conflict use_column
DECLARE
    sought record;
BEGIN
    SELECT * INTO sought FROM {sought_key}($1, $2, $3);
    RETURN QUERY
    WITH tail AS MATERIALIZED (
        SELECT DISTINCT ON (c.kind, c.tag) c.kind, c.tag, c.due, c.hold, c.set_at
        FROM {fold} AS f
        CROSS JOIN LATERAL (
            SELECT * FROM {timer_change} AS r
            WHERE r.interval_id = f.interval_id AND r.n > f.through AND r.n < f.through + 1000000000
            OFFSET 0
        ) AS c
        WHERE f.interval_id = sought.interval_id
          AND c.slot = sought.key_slot AND c.computation = sought.computation_id AND c.key = sought.key_text
        ORDER BY c.kind, c.tag, c.n DESC
    ), merged AS (
        SELECT s.kind, s.tag, s.due, s.hold, s.set_at
        FROM {timer} AS s
        WHERE s.slot = sought.key_slot AND s.computation = sought.computation_id
          AND s.key = sought.key_text
          AND NOT EXISTS (SELECT FROM tail AS t WHERE t.kind = s.kind AND t.tag = s.tag)
        UNION ALL
        SELECT t.kind, t.tag, t.due, t.hold, t.set_at FROM tail AS t WHERE t.due IS NOT NULL
    )
    SELECT m.kind, m.tag, {micros_to_time}(m.due), {micros_to_time}(m.hold), {micros_to_time}(m.set_at)
    FROM merged AS m
    ORDER BY m.due, m.kind, m.tag;
END
$$;
COMMENT ON FUNCTION {timers_of}(text, jsonb, integer) IS
    'Pending timers and holds of one key, the soonest first. As in the view timers, at this snapshot';
CREATE OR REPLACE FUNCTION {pending_of}(computation text, key jsonb, slot integer DEFAULT NULL)
RETURNS TABLE (
    sender text, stream text, id uuid, value json, "timestamp" timestamptz, produced_at timestamptz
)
LANGUAGE plpgsql STABLE SET plan_cache_mode TO force_generic_plan SET jit TO off AS $$
#variable_conflict use_column
DECLARE
    sought record;
BEGIN
    SELECT * INTO sought FROM {sought_key}($1, $2, $3);
    RETURN QUERY
    SELECT p.sender, p.stream, p.id, p.value, p."timestamp", p.produced_at
    FROM {pending_productions} AS p
    WHERE p.receiver = $1 AND p.slot = sought.key_slot AND p.key = $2
    ORDER BY p.produced_at, p.log, p.seq;
END
$$;
COMMENT ON FUNCTION {pending_of}(text, jsonb, integer) IS
    'Records sent to one key that are not acknowledged, the oldest first. As in the view pending_productions'
