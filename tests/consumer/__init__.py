"""A project that uses millwheel, as its users write one: `parcels`, with strict type checkers.

`tests/project/test_consumer.py` copies it out, checks its types with mypy and pyright against the
installed wheel, and runs its tests.
"""
