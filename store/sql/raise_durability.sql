-- Lets the commits of this session wait for the disk at least: a setting of a role or database that asks
-- for less is raised, one that asks for more (remote_apply) stays.
SELECT set_config('synchronous_commit', 'on', false)
WHERE current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')
