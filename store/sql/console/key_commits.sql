-- The newest commits of an interval that are stored, at most so many: the first number among them, and its time.
SELECT r.n, r.stamp
FROM {commit_record} AS r
WHERE r.interval_id = %(interval_id)s AND r.n > (
    SELECT x.n FROM {commit_record} AS x WHERE x.interval_id = %(interval_id)s ORDER BY x.n DESC LIMIT 1
) - %(most_commits)s
ORDER BY r.n
LIMIT 1
