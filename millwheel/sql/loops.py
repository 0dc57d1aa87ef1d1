"""The functions of a query's steps, as sources: loops over the records of a chunk, folds, rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from millwheel.computations.folds import Fold
from millwheel.sql import typed as t
from millwheel.sql.accumulating import NAMES, AggregatePlan, Slot
from millwheel.sql.generated import Generated
from millwheel.sql.generating import Generator
from millwheel.sql.keys import decoded, key_function
from millwheel.sql.relations import ITEM, Expansion
from millwheel.sql.scopes import WINDOW
from millwheel.sql.window_tables import Window, check_lines, window_lines
from millwheel.streams import Stream

GROUP, RESULT = "group", "aggregate"
"""Stand for the tables of grouped values and of aggregates' results."""


def of_record(column: t.ColumnValue) -> str:
    """The Python for a column of a record, or of its window."""
    return column.name if column.table in (WINDOW, ITEM) else f"record.{column.name}"


def expansion_lines(expansions: Sequence[Expansion], generator: Generator) -> list[str]:
    """The heads of loops over the items of arrays, each inside of the one before."""
    lines = []
    for each in expansions:
        array = generator.value(each.array)
        if each.number is None:
            items = f"{array} or {'(None,)' if each.keeps_empty else '()'}"
            lines.append(f"for {each.item} in {items}:")
        else:
            items = f"enumerate({array} or (), 1)"
            if each.keeps_empty:
                items = f"[*{items}] or ((None, None),)"
            lines.append(f"for {each.number}, {each.item} in {items}:")
    return lines


def _inside(heads: Sequence[str], lines: Sequence[str]) -> list[str]:
    """Lines inside of loops."""
    found = ["    " * depth + head for depth, head in enumerate(heads)]
    return found + ["    " * len(heads) + line for line in lines]


def select_source(
    checks: Sequence[str],
    before: Sequence[str],
    opened: Sequence[str],
    condition: str,
    row: str,
) -> str:
    """The loop that filters and projects the records of a chunk.

    Args:
        checks: lines before the loop.
        before: lines before each record.
        opened: the heads of inner loops.
        condition: of the rows; empty: there is none.
        row: the Python for a row.
    """
    if not checks and not before and not condition and not opened:
        return f"def select(values, times):\n    return [{row} for record in values], None, None\n"
    lines = [
        *checks,
        "found, micros, places = [], [], []",
        "for place, record in enumerate(values):",
    ]
    if before:
        lines.append("    at = times[place]")
    lines += [f"    {line}" for line in before]
    heads = [*opened, *([f"if {condition}:"] if condition else [])]
    taken = [f"found.append({row})", "micros.append(times[place])", "places.append(place)"]
    lines += [f"    {line}" for line in _inside(heads, taken)]
    return _function("select", "values, times", [*lines, "return found, micros, places"])


def _function(name: str, parameters: str, lines: Sequence[str]) -> str:
    body = "".join(f"    {line}\n" for line in lines)
    return f"def {name}({parameters}):\n{body}"


@dataclass(frozen=True)
class GroupedRecords:
    """Which records are added up, and by which values."""

    keys: Sequence[t.Typed]
    plans: Sequence[AggregatePlan]
    where: t.Typed | None
    window: Window | None
    expansions: Sequence[Expansion]

    @property
    def of_record(self) -> list[t.Typed]:
        """The expressions that are evaluated for each record."""
        found = [*self.keys, *(plan.node for plan in self.plans)]
        found += [] if self.where is None else [self.where]
        return found + [each.array for each in self.expansions]


def adding_loop(of: GroupedRecords, partial: type, meaning: str) -> Generated:
    """The loop that adds up the records of a chunk by key and part of time."""
    keys, plans, where, window = of.keys, of.plans, of.where, of.window
    generator = Generator(of_record)
    generator.names.update(NAMES)
    made = generator.name("Partial", partial)
    lines = [] if window is None else check_lines(window.time, generator)
    bucket = "None" if window is None else window.bucket(generator)
    lines += [
        "groups = {}",
        "get = groups.get",
        "place = -1",
        "for record, at in zip(values, times):",
    ]
    inner = []
    if where is not None:
        inner += [f"if not {generator.truth(where)}:", "    continue"]
    parts = ", ".join([*map(generator.value, keys), bucket])
    initial = ", ".join(slot.initial for plan in plans for slot in plan.slots)
    inner += [
        f"key = ({parts},)",
        "slots = get(key)",
        "if slots is None:",
        f"    slots = groups[key] = [{initial}{', ' if initial else ''}at, place]",
        "elif at < slots[-2]:",
        "    slots[-2] = at",
    ]
    for plan in plans:
        added = plan.add(generator, lambda number: f"slots[{number}]")
        if plan.node.filter is not None:
            added = [f"if {generator.truth(plan.node.filter)}:", *(f"    {x}" for x in added)]
        inner += added
    heads = expansion_lines(of.expansions, generator)
    before = window_lines(window, of.of_record, generator)
    lines += [f"    {line}" for line in ["place += 1", *before, *_inside(heads, inner)]]
    lines += [
        "found, micros, places = [], [], []",
        "for key, slots in groups.items():",
        f"    found.append({made}(*key[:-1], *slots[:-2]))",
        "    micros.append(slots[-2])",
        "    places.append(slots[-1])",
        "return found, micros, places",
    ]
    return Generated(
        "add_up",
        _function("add_up", "values, times", lines),
        generator.names,
        meaning,
        generator.places,
    )


def row_fold(
    plans: Sequence[AggregatePlan], slots: Sequence[Slot], meaning: str
) -> Fold[Any, Any, Any]:
    """The fold of records themselves, with the accumulators of `fold_of`."""
    generator = Generator(of_record)
    generator.names.update(NAMES)
    lines = []
    for plan in plans:
        added = plan.add(generator, lambda number: f"sums.s{number}")
        if plan.node.filter is not None:
            added = [f"if {generator.truth(plan.node.filter)}:", *(f"    {x}" for x in added)]
        lines += added
    source = _function("add", "sums, record", [*lines, "return sums"])
    fold = fold_of(plans, slots, meaning)
    return replace(fold, add=Generated("add", source, generator.names, meaning, generator.places))


def record_key(keys: Sequence[t.Typed], meaning: str) -> Generated:
    """The function that gives the key of a record."""
    generator = Generator(of_record)
    values = [f"({generator.value(value)})" for value in keys]
    return key_function("record", values, keys, generator, meaning)


def sums_of(slots: Sequence[Slot]) -> Any:
    """The type of a group's accumulator; its fields begin with the values of an empty group."""
    fields: list[Any] = [
        (f"s{number}", slot.type, slot.default) for number, slot in enumerate(slots)
    ]
    return msgspec.defstruct("Sums", fields)


def adder(plans: Sequence[AggregatePlan], meaning: str) -> Generated:
    """The function that adds a partial sum to an accumulator."""
    lines = [*_merged(plans), "return sums"]
    return Generated("add", _function("add", "sums, more", lines), NAMES, meaning)


def _merged(plans: Sequence[AggregatePlan]) -> list[str]:
    return [
        line
        for plan in plans
        for line in plan.merge(lambda number: f"sums.s{number}", lambda number: f"more.s{number}")
    ]


def fold_of(
    plans: Sequence[AggregatePlan], slots: Sequence[Slot], meaning: str
) -> Fold[Any, Any, Any]:
    """The fold of partial sums."""
    sums = sums_of(slots)
    copied = ", ".join(slot.copied(f"sums.s{number}") for number, slot in enumerate(slots))

    def generated(name: str, parameters: str, lines: Sequence[str]) -> Generated:
        return Generated(name, _function(name, parameters, lines), {**NAMES, "Sums": sums}, meaning)

    lines = [f"sums = Sums({copied})", *_merged(plans), "return sums"]
    return Fold(
        init=generated("begin", "", ["return Sums()"]),
        add=adder(plans, meaning),
        result=generated("finish", "sums", ["return sums"]),
        accumulator=sums,
        merge=generated("merge", "sums, more", lines),
    )


@dataclass(frozen=True)
class GroupRow:
    """The row of a group: its columns, by groups and results of aggregates."""

    names: Sequence[str]
    values: Sequence[t.Typed]
    having: t.Typed | None
    target: Stream[Any]


def row_maker(
    of: GroupRow, plans: Sequence[AggregatePlan], keys: Sequence[t.Typed], meaning: str, *,
    of_pane: bool,
) -> Generated:  # fmt: skip
    """The function that makes a row of a group; it returns None if HAVING leaves it out.

    Args:
        of_pane: it takes a pane; otherwise a key and its accumulator.
    """

    def access(column: t.ColumnValue) -> str:
        if column.table == GROUP:
            return f"k{column.name}"
        if column.table == RESULT:
            return plans[int(column.name)].result(generator, lambda number: f"sums.s{number}")
        return {"window_start": "pane.start", "window_end": "pane.end"}[column.name]

    generator = Generator(access)
    lines = ["key, sums = pane.key, pane.value"] if of_pane else []
    for number, value in enumerate(keys):
        part = "key" if len(keys) == 1 else f"key[{number}]"
        lines.append(f"k{number} = {decoded(part, value, generator)}")
    if of.having is not None:
        lines += [f"if not {generator.truth(of.having)}:", "    return None"]
    values = ", ".join(
        f"{name}={generator.value(value)}" for name, value in zip(of.names, of.values, strict=True)
    )
    lines.append(f"return {generator.name('Row', of.target.value_type)}({values})")
    parameters = "pane" if of_pane else "key, sums"
    return Generated(
        "row", _function("row", parameters, lines), generator.names, meaning, generator.places
    )
