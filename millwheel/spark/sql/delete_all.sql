DELETE FROM {target}
