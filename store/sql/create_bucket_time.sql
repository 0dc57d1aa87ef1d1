-- The six tables of one stretch of production time. CREATE + INHERIT, not PARTITION OF, which would wait
-- for readers of the parents (decision 1).
CREATE TABLE {commit_record_new} (LIKE {commit_record} INCLUDING STORAGE, PRIMARY KEY (interval_id, n));
CREATE TABLE {state_change_new} (LIKE {state_change} INCLUDING STORAGE);
CREATE INDEX ON {state_change_new} (interval_id, n);
CREATE TABLE {timer_change_new} (LIKE {timer_change} INCLUDING STORAGE);
CREATE INDEX ON {timer_change_new} (interval_id, n);
CREATE TABLE {production_new} (LIKE {production} INCLUDING STORAGE, PRIMARY KEY (log, seq));
CREATE TABLE {straggler_new} (LIKE {straggler} INCLUDING STORAGE, PRIMARY KEY (log, seq));
CREATE INDEX ON {straggler_new} (origin, place) WHERE origin <> 0;
CREATE TABLE {seen_record_new} (LIKE {seen_record} INCLUDING STORAGE, PRIMARY KEY (computation, id, slot));
ALTER TABLE {commit_record_new} INHERIT {commit_record};
ALTER TABLE {state_change_new} INHERIT {state_change};
ALTER TABLE {timer_change_new} INHERIT {timer_change};
ALTER TABLE {production_new} INHERIT {production};
ALTER TABLE {straggler_new} INHERIT {straggler};
ALTER TABLE {seen_record_new} INHERIT {seen_record}
