"""The result of one check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from millwheel.errors import StoreError

State = Literal["ok", "warning", "missing"]


@dataclass(frozen=True)
class Finding:
    check: str
    """A name of one or two words."""
    state: State
    """``missing``: a worker would not run."""
    found: str
    why: str
    """The reason why it is needed."""
    remedy: tuple[str, ...] = ()
    """Statements, settings or commands, one of which gives it, unless they say otherwise."""
    exit_code: int = StoreError.exit_code
    """The exit code of a command that misses it."""


def ok(check: str, found: str, why: str) -> Finding:
    return Finding(check, "ok", found, why)


def warning(check: str, found: str, why: str, *remedy: str) -> Finding:
    return Finding(check, "warning", found, why, remedy)


def missing(
    check: str, found: str, why: str, *remedy: str, exit_code: int = StoreError.exit_code
) -> Finding:
    return Finding(check, "missing", found, why, remedy, exit_code)
