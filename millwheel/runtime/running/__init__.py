"""Runs user code: calls, attempts, timers and requests of one key, and chunks of many keys."""
