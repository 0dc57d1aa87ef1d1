"""Reads the views of a pipeline from Python, at one snapshot (``docs/sql.md``)."""

from millwheel.store.console.snapshot import snapshot

__all__ = ["snapshot"]
