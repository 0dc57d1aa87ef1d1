"""Some tests on each version of Python and of Postgres that this machine has, or can get:
``make versions``."""
