"""Reads the views of a pipeline from Python, at one snapshot.

See ``docs/howto/connect/sql-inside.md``.
"""

from millwheel.store.console.snapshot import snapshot

__all__ = ["snapshot"]
