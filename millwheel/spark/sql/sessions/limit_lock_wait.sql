SET LOCAL lock_timeout = {timeout}
