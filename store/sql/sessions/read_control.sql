-- What names the server and its history: the identifier that initdb has drawn, and the timeline, which a promotion
-- of a standby and a restore to a point in time change.
SELECT
    s.system_identifier::text || ' ' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)
FROM pg_control_system() AS s
