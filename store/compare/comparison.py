"""The result of a comparison."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

Verdict = Literal["equal", "differs", "undecided"]
RowKind = Literal["only in a", "only in b", "differs"]

MOST_ROWS = 20
"""Rows of a part that are shown."""

MOST_TEXT = 2_000
"""Characters of a value that are shown."""


class DifferingRow(msgspec.Struct, frozen=True):
    """A row that is not equal on both sides. Values are texts as Postgres writes them, the first
    2,000 characters; None is NULL."""

    kind: RowKind
    key: dict[str, str | None]
    """Empty if the table has no key."""
    a: dict[str, str | None] | None
    """The other columns; None: there is no such row in `a`."""
    b: dict[str, str | None] | None
    columns: list[str]
    """Those that differ, if both sides have the row."""
    times: int = 1
    """How much more often one side has it, if the table has no key."""


class ComparedPart(msgspec.Struct, frozen=True):
    """A table, or the states or timers of one step."""

    what: Literal["table", "states", "timers"]
    name: str
    compared: int
    """Rows, a pair counted once."""
    only_in_a: int
    only_in_b: int
    differing: int
    left_out_a: int
    """Rows of `a` that are not compared, because they are not final."""
    left_out_b: int
    rule: str
    """Which rows are compared, in words."""
    below: str | None
    """The time below which rows are compared, in ISO 8601; None: all are."""
    is_proof: bool
    """Whether a difference is a fault; otherwise it may be due to other places of the input."""
    remarks: list[str]
    """Columns that were not compared, and why the server may need much time or disk."""
    rows: list[DifferingRow]
    """The first ones in the order of the key."""

    @property
    def differences(self) -> int:
        return self.only_in_a + self.only_in_b + self.differing

    @property
    def has_left_out(self) -> bool:
        return bool(self.left_out_a or self.left_out_b)

    @property
    def title(self) -> str:
        return f"table {self.name}" if self.what == "table" else f"{self.what} of {self.name}"


class PipelineComparison(msgspec.Struct, frozen=True):
    """Two pipelines at one moment. Names beginning with `a` belong to the first one."""

    a: str
    b: str
    verdict: Verdict
    same_place: bool
    place: str
    """Where both are in their input, in words."""
    watermark: str
    """The common low watermark, in ISO 8601, or infinity, or -infinity."""
    parts: list[ComparedPart]
    only_in_a: list[str]
    """Tables and steps that `b` lacks."""
    only_in_b: list[str]


def verdict_on(parts: Iterable[ComparedPart]) -> Verdict:
    """Undecided if rows differ where that proves nothing, or if no row is final on both sides."""
    found = list(parts)
    different = [part for part in found if part.differences]
    if any(part.is_proof for part in different):
        return "differs"
    if different or (
        any(part.has_left_out for part in found) and not any(p.compared for p in found)
    ):
        return "undecided"
    return "equal"
