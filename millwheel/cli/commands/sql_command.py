"""``millwheel sql``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, NoReturn

import typer

from millwheel.cli.command import command
from millwheel.cli.fitted_tables import Layout, layout
from millwheel.cli.opened_store import opened
from millwheel.cli.options import CommonOptions, OnePipeline, OptionGroup
from millwheel.cli.printing import print_csv, print_rows_as_json, sentence_lines
from millwheel.cli.refreshing import WatchOptions, refreshed
from millwheel.cli.terminal import width_of
from millwheel.core.quantities import count_of
from millwheel.errors import StoreUnavailable, UsageError
from millwheel.store.console.selection import Selection, select

Format = Literal["table", "csv", "json"]
Expanded = Literal["auto", "on", "off"]

app = typer.Typer()


@dataclass(frozen=True)
class OutputOptions(OptionGroup):
    form: Annotated[
        Format | None, typer.Option("--format", "-f", help="Output format. Default: table.")
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="As --format json.")] = False
    expanded: Annotated[
        Expanded,
        typer.Option(
            "--expanded",
            "-x",
            help="Print a line for each column: of every table (on), of none (off), or of one that "
            "is wider than the terminal (auto).",
        ),
    ] = "auto"

    @property
    def chosen(self) -> Format:
        """`UsageError` if both options are given, and differ."""
        if self.as_json and self.form not in (None, "json"):
            raise UsageError(f"--json is --format json; leave --format {self.form} out")
        return "json" if self.as_json else self.form or "table"


@command(
    app,
    examples=[
        "millwheel sql 'SELECT key, searches FROM state_of_count_searches'",
        "millwheel sql 'SELECT * FROM states LIMIT 5' --format csv",
        "millwheel sql 'SELECT count(*) FROM timers' --watch --interval 5",
    ],
)
def sql(
    statements: Annotated[
        list[str],
        typer.Argument(
            metavar="STATEMENT...",
            help="A read-only statement, such as a SELECT. Several statements read one snapshot.",
        ),
    ],
    pipeline: OnePipeline = None,
    timeout: Annotated[
        float, typer.Option(min=0.001, max=86400, help="Timeout of each statement, in seconds.")
    ] = 60.0,
    *,
    output: OutputOptions,
    watching: WatchOptions,
    common: CommonOptions,
) -> None:
    """Run read-only SQL on the store's tables and views."""
    seconds, form = watching.seconds, output.chosen
    if seconds is not None:
        if form != "table":
            raise UsageError("--watch shows tables; leave --format and --json out")
        with opened(common) as presence:
            selected = partial(select, presence.url, statements, pipeline=pipeline)
            _watch(selected, timeout, seconds, output.expanded)
    as_json = form == "json"
    with (
        opened(common) as presence,
        select(
            presence.url, statements, pipeline=pipeline, seconds=timeout, as_json=as_json
        ) as answers,
    ):
        if as_json:
            _print_json(answers, several=len(statements) > 1)
            return
        for number, answer in enumerate(answers):
            if number:
                typer.echo()
            _print_answer(answer, form, output.expanded)


def _watch(
    selected: Callable[..., Any], timeout: float, seconds: float, expanded: Expanded
) -> NoReturn:
    """Show the answers until interrupted; a store that becomes unreachable is retried."""
    with refreshed() as watch:
        is_first = True
        while True:
            try:
                with selected(seconds=timeout, as_json=False) as answers:
                    found = [layout(answer.columns, answer.rows) for answer in answers]
                    watch.show(partial(_all_lines, found, expanded))
            except StoreUnavailable as error:
                if is_first:
                    raise
                watch.show(partial(sentence_lines, str(error)))
            is_first = False
            watch.wait(seconds)


def _all_lines(found: list[Layout], expanded: Expanded, width: int | None) -> Iterator[str]:
    for one in found:
        yield from _lines(one, expanded, width)


def _lines(found: Layout, expanded: Expanded, width: int | None) -> Iterator[str]:
    made = found.stacked_if(expanded, width)
    yield from made.lines(width)
    yield f"({count_of(len(made.rows), 'row')})"


def _print_answer(answer: Selection, form: Format, expanded: Expanded) -> None:
    if form == "csv":
        print_csv(answer.columns, answer.rows)
        return
    found = layout(answer.columns, answer.rows)
    for line in _lines(found, expanded, width_of(sys.stdout)):
        typer.echo(line)


def _print_json(answers: Iterable[Selection], *, several: bool) -> None:
    """One document: the rows of a statement, or an array of those of several ones."""
    between = "[\n"
    for answer in answers:
        _require_distinct(answer.columns)
        if several:
            sys.stdout.write(between)
            between = ",\n"
        print_rows_as_json(answer.columns, answer.rows)
    if several:
        sys.stdout.write("]\n")


def _require_distinct(columns: list[str]) -> None:
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise UsageError(
            f"several columns are named {', '.join(twice)}, and JSON would keep only one of them: "
            "rename them with AS"
        )
