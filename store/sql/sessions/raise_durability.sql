-- Makes the commits of this session wait at least for the disk, whatever its role or database, or a later
-- reload of the server, sets; a setting that waits for more (remote_apply) stays.
SELECT set_config(
    'synchronous_commit',
    CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END,
    false
)
