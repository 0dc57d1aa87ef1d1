"""Protocols as tables: `{state: {event: next state}}` (docs/why/protocols.md shows them)."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeVar

from millwheel.errors import InvariantBroken

S = TypeVar("S", bound=enum.Enum)


def next_state(table: Mapping[S, Mapping[str, S]], state: S, event: str, subject: str) -> S:
    """`InvariantBroken` if the event is illegal."""
    found = table[state].get(event)
    if found is None:
        raise InvariantBroken(f"{subject}: {event!r} while {state.value}")
    return found
