"""Draws the engine's protocols from their tables: ``python -m tests.docs.protocols`` writes
docs/why/protocols.md."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from millwheel.runtime.interval import interval
from millwheel.runtime.lane import committer, runner
from millwheel.runtime.modes import batches
from millwheel.runtime.network import handshake

PAGE = Path(__file__).parents[2] / "docs" / "why" / "protocols.md"

HEAD = """# Protocols

The engine's protocols are tables in the code, `{state: {event: next state}}`; an event that a
state does not allow raises `InvariantBroken`. This page is made from the tables by
`python -m tests.docs.protocols`.
"""

Table = Mapping[Any, Mapping[str, Any]]


def page() -> str:
    """The whole document."""
    parts = [
        HEAD,
        _section("Ownership of an interval", interval.__name__, interval.TRANSITIONS),
        _section("The runner", runner.__name__, runner.TRANSITIONS),
        _section("The committer", committer.__name__, committer.TRANSITIONS),
        _section("Numbered bundles", batches.__name__, batches.TRANSITIONS),
        _handshake(),
    ]
    return "\n".join(parts)


def _section(title: str, module: str, table: Table) -> str:
    lines = [f"## {title}", "", f"`{module}`", "", "```mermaid", "stateDiagram-v2"]
    lines.append(f"    [*] --> {next(iter(table)).name}")
    for state, events in table.items():
        lines += [f"    {state.name} --> {after.name}: {event}" for event, after in events.items()]
    return "\n".join([*lines, "```", ""])


def _handshake() -> str:
    lines = ["## The handshake of a connection", "", f"`{handshake.__name__}`", ""]
    for role, states in handshake.STEPS.items():
        lines += [f"The {role}:", "", "```mermaid", "stateDiagram-v2"]
        lines.append(f"    [*] --> {next(iter(states))}")
        for state, (frame, after) in states.items():
            lines.append(f"    {state} --> {after}: {frame.__name__}")
        lines += ["```", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
