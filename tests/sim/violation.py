"""What a run ends with when something that must hold does not."""

from __future__ import annotations


class Violation(AssertionError):
    """Something that must hold does not; `check` is its name."""

    def __init__(self, check: str, what: str, more: str = "") -> None:
        super().__init__(f"{check}: {what}")
        self.check = check
        self.what = what
        self.more = more
        """What everything waits for, if that is of interest."""
        self.trace: list[str] = []
        """The last events before it."""
