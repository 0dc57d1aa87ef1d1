UPDATE {fold} AS f SET through = l.n FROM {latest_commits} AS l WHERE l.interval_id = f.interval_id
