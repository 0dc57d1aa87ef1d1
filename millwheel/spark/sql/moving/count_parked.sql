SELECT count(*) FROM {parked_keys}
