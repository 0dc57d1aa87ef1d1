SELECT f.interval_id, f.through, l.n
FROM {fold} AS f JOIN {latest_commits} AS l ON l.interval_id = f.interval_id
WHERE l.n > f.through
