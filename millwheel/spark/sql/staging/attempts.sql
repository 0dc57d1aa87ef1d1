SELECT attempts::text[], rows FROM {batches} WHERE batch = %(batch)s
