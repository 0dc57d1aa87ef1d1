"""Changes that a deploy finds: the words for them. Their kinds are in
`millwheel.store.rules.changes.kinds`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgspec

_QUOTED = re.compile(r"'(\w+)'")


class ChangeVerdict(Enum):
    TAKEN = "taken"
    """As it is."""
    FOLLOWS = "taken, but"
    """With a consequence."""
    NEEDS = "needs"
    """Refused until something has been done first."""
    IMPOSSIBLE = "impossible"
    """Refused; there is a way round."""

    @property
    def refuses(self) -> bool:
        return self in (ChangeVerdict.NEEDS, ChangeVerdict.IMPOSSIBLE)


@dataclass(frozen=True)
class Kind:
    """A row of the page."""

    change: str
    verdict: ChangeVerdict
    text: str = ""
    """The consequence, the need, or the reason with the way round."""


@dataclass(frozen=True)
class CodeChange:
    """One difference between the deployed code and other code."""

    kind: Kind
    where: str
    """The node, stream or table."""
    before: Any = None
    """The deployed value, as JSON; None: the kind needs none."""
    after: Any = None
    given: Mapping[str, Any] = field(default_factory=dict)
    """Fills the gaps of the kind's text."""
    labels: Mapping[str, str] = field(default_factory=dict, compare=False)
    """What people read in place of quoted names that the engine has made."""

    @property
    def refuses(self) -> bool:
        return self.kind.verdict.refuses

    @property
    def names(self) -> frozenset[str]:
        """The names in `where`: of the node, the stream or the table, and of its parts."""
        return frozenset(_QUOTED.findall(self.where))

    @property
    def title(self) -> str:
        where = self._labelled(self.where)
        if self.before is None and self.after is None:
            return f"{where}: {self.kind.change}"
        return f"{where}: {self.kind.change} ({_shown(self.before, self.after)})"

    @property
    def text(self) -> str:
        return self._labelled(self.kind.text.format_map(self.given))

    def _labelled(self, text: str) -> str:
        return _QUOTED.sub(lambda found: repr(self.labels.get(found[1], found[1])), text)

    def as_json(self) -> dict[str, Any]:
        return {
            "where": self.where,
            "change": self.kind.change,
            "verdict": self.kind.verdict.name.lower(),
            "before": self.before,
            "after": self.after,
            "text": self.text,
        }


def _shown(before: Any, after: Any) -> str:
    """Two values; of objects only the parts that differ."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return f"{_json(before)} → {_json(after)}"
    return ", ".join(
        f"{name}: {_shown(before.get(name), after.get(name))}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    )


def _json(value: Any) -> str:
    return "nothing" if value is None else msgspec.json.encode(value).decode()


def lines_of(change: CodeChange) -> list[str]:
    """A change for people: one line, and its text indented."""
    head = f"{change.kind.verdict.value + ':':<12} {change.title}"
    return [head, *(f"    {line}" for line in change.text.splitlines())]
