DELETE FROM {target} AS kept USING {groups} WHERE {matches}
