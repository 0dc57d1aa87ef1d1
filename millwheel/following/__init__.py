"""A source that follows a numbered table of another pipeline, on the same or on another server:
each row once.

::

    from millwheel.following import NumberedTable

    panes = NumberedTable("postgresql://…", "flights", "pane_log", timestamp=lambda p: p.start)
    pipeline.inject(PANES, panes)

So pipelines on several servers join: each has a Postgres of its own, and what can be divided by key
at the entrance grows with the number of servers. See ``docs/sources.md``.
"""

from millwheel.following.source import NumberedTable

__all__ = ["NumberedTable"]
