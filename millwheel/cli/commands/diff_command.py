"""``millwheel diff``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

import typer

from millwheel.cli.command import command
from millwheel.cli.fitted_tables import Cell, Fit, Styled, print_table
from millwheel.cli.options import CommonOptions, Json, OptionGroup
from millwheel.cli.printing import print_json, tell
from millwheel.cli.shown_line import shown_line
from millwheel.core.quantities import count_of
from millwheel.errors import UsageError
from millwheel.store.compare import (
    ComparedPart,
    CompareOptions,
    DifferingRow,
    PipelineComparison,
    compare,
)
from millwheel.store.compare.comparing import SECONDS, WHOLE, Show

DIFFERS = 1
"""Exit code unless both are equal."""

app = typer.Typer()

Name = "Name of a pipeline, or PIPELINE@LABEL of a savepoint."


@dataclass(frozen=True)
class PartOptions(OptionGroup):
    """The parts that are compared, and how far."""

    tables: Annotated[
        list[str] | None,
        typer.Option(
            "--table",
            metavar="NAME",
            help="Compare only this table; may be repeated. Default: all tables, states and "
            "timers.",
        ),
    ] = None
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Compare below this time of the low watermark, in ISO 8601, for example "
            "2024-05-01T12:00Z. Default: the common low watermark.",
        ),
    ] = None
    times: Annotated[
        list[str] | None,
        typer.Option(
            "--time",
            metavar="TABLE.COLUMN",
            help="The column with the time of a table's rows; may be repeated. Default: the only "
            "timestamptz column, or the one that is named as an end, or is in the key.",
        ),
    ] = None
    limit: Annotated[
        float,
        typer.Option(min=0.001, max=86_400, metavar="SECONDS", help="Give up after this time."),
    ] = SECONDS

    def chosen(self) -> CompareOptions:
        times = {}
        for given in self.times or ():
            table, dot, column = given.rpartition(".")
            if not (table and dot and column):
                raise UsageError(
                    f"--time {given}: give TABLE.COLUMN, for example per_minute.minute"
                )
            times[table] = column
        return CompareOptions(self.tables or (), _time(self.at), times, self.limit)


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            f"--at {text}: give a time in ISO 8601 with a zone, for example 2024-05-01T12:00Z"
        ) from error


@command(
    app,
    examples=[
        "millwheel diff zeitgeist zeitgeist2",
        "millwheel diff zeitgeist zeitgeist@before --table spikes",
        "millwheel diff zeitgeist zeitgeist2 --at 2024-05-01T12:00Z --json",
    ],
)
def diff(
    a: Annotated[str, typer.Argument(metavar="A", help=Name)],
    b: Annotated[str, typer.Argument(metavar="B", help=Name)],
    as_json: Json = False,
    *,
    parts: PartOptions,
    common: CommonOptions,
) -> None:
    """Compare two pipelines or savepoints row by row. The exit code is 1 unless they are equal.

    Both are read at one moment, as far as their low watermarks have come.
    """
    with _progress() as show:
        found = compare(common.store, a, b, parts.chosen(), show)
    if as_json:
        print_json(found)
    else:
        _print(found)
    if found.verdict != "equal":
        raise typer.Exit(DIFFERS)


@contextmanager
def _progress() -> Iterator[Show]:
    with shown_line() as draw:

        def show(title: str, rows: int, share: float | None) -> None:
            done = "" if share is None else f", {min(share, 1.0):.0%}"
            draw(f"{title}: {count_of(rows, 'row')} compared{done}")

        yield show


def _print(found: PipelineComparison) -> None:
    tell(_verdict(found))
    tell(found.place if found.same_place else f"{found.place}; common: {found.watermark}")
    for names, name in ((found.only_in_a, found.a), (found.only_in_b, found.b)):
        if names:
            tell(f"only {name} has, and so not compared: {', '.join(names)}", "warning")
    typer.echo()
    columns = ["part", "rows", f"only {found.a}", f"only {found.b}", "differ", "left out"]
    print_table(columns, map(_counts, found.parts), Fit(drop=["left out"]))
    typer.echo()
    for rule, titles in _by_rule(found.parts).items():
        if not (found.same_place and rule == WHOLE):
            tell(f"{', '.join(titles)}: {rule}", "note")
    for part in found.parts:
        for remark in part.remarks:
            tell(f"{part.title}: {remark}", "note")
    for part in found.parts:
        if part.differences:
            _print_rows(found, part)


def _verdict(found: PipelineComparison) -> str:
    names = f"{found.a} and {found.b}"
    if found.verdict == "equal":
        return f"{names} are equal{'' if found.same_place else ', as far as both have come'}"
    proofs = sum(part.differences for part in found.parts if part.is_proof)
    others = sum(part.differences for part in found.parts) - proofs
    if found.verdict == "differs":
        more = f", and in {others:,} more where that proves nothing" if others else ""
        return f"{names} differ in {count_of(proofs, 'row')}{more}"
    if not others:
        return f"undecided: no row of {names} is final on both sides yet"
    return f"undecided: {names} differ in {count_of(others, 'row')}, but where that proves nothing"


def _counts(part: ComparedPart) -> list[Cell]:
    style = "error" if part.differences and part.is_proof else None
    out = f"{part.left_out_a:,} / {part.left_out_b:,}"
    numbers = (part.compared, part.only_in_a, part.only_in_b, part.differing)
    return [
        Styled(part.title, style),
        *(f"{number:,}" for number in numbers),
        out if part.left_out_a or part.left_out_b else "0",
    ]


def _by_rule(parts: list[ComparedPart]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for part in parts:
        found.setdefault(part.rule, []).append(part.title)
    return found


def _print_rows(found: PipelineComparison, part: ComparedPart) -> None:
    typer.echo()
    first = f", the first {len(part.rows)}" if len(part.rows) < part.differences else ""
    tell(f"{part.title}: {count_of(part.differences, 'row')} not equal{first}", "heading")
    lines = [line for row in part.rows for line in _lines(row)]
    print_table(["row", "column", found.a, found.b], lines, Fit())


def _lines(row: DifferingRow) -> Iterator[list[Cell]]:
    """A line for each column; those that differ have a star."""
    key = ", ".join(f"{name} {_value(value)}" for name, value in row.key.items())
    if row.times > 1:
        key = f"{key}{row.times} times".strip()
    for name in row.a or row.b or {"": None}:
        differs = row.kind != "differs" or name in row.columns
        a, b = (_cell(side, name) for side in (row.a, row.b))
        yield [
            key,
            f"* {name}" if differs else f"  {name}",
            Styled(a, "warning" if differs else None),
            Styled(b, "warning" if differs else None),
        ]
        key = ""


def _cell(side: dict[str, str | None] | None, name: str) -> str:
    return "(no row)" if side is None else _value(side[name]) if name else ""


def _value(value: str | None) -> str:
    return "NULL" if value is None else value or "''"
