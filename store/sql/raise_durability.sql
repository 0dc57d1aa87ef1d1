-- Lets the commits of this session wait for the disk at least, whatever its role, its database or, at a later
-- reload, the server is set to; a setting that asks for more (remote_apply) stays.
SELECT set_config(
    'synchronous_commit',
    CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END,
    false
)
