-- What the commits of this session wait for.
SHOW synchronous_commit
