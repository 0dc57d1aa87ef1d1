"""A source that follows a numbered table of another pipeline, on any server: each row once.

So pipelines on several servers join: each has a Postgres of its own, and work that can be divided
by key at the entrance grows with the number of servers. See
``docs/howto/connect/another-pipeline.md``.
"""

from millwheel.following.table_source import NumberedTable

__all__ = ["NumberedTable"]
