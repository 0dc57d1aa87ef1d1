"""``millwheel sql``."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal, NoReturn

import typer
from rich.text import Text

from millwheel.cli.command import command
from millwheel.cli.opened_store import opened
from millwheel.cli.options import CommonOptions, OnePipeline
from millwheel.cli.printing import print_csv, print_rows_as_json, print_table, table
from millwheel.cli.refreshing import WatchOptions, showing
from millwheel.errors import StoreUnavailable, UsageError
from millwheel.store.console.selection import Selection, select

Format = Literal["table", "csv", "json"]

app = typer.Typer()


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
    form: Annotated[Format, typer.Option("--format", "-f", help="Output format.")] = "table",
    timeout: Annotated[
        float, typer.Option(min=0.001, max=86400, help="Timeout of each statement, in seconds.")
    ] = 60.0,
    *,
    watching: WatchOptions,
    common: CommonOptions,
) -> None:
    """Run read-only SQL on the store's tables and views."""
    seconds = watching.seconds
    if seconds is not None:
        if form != "table":
            raise UsageError("--watch shows tables; leave --format out")
        with opened(common) as presence:
            _watch(partial(select, presence.url, statements, pipeline=pipeline), timeout, seconds)
    as_json = form == "json"
    with (
        opened(common) as presence,
        select(
            presence.url, statements, pipeline=pipeline, seconds=timeout, as_json=as_json
        ) as answers,
    ):
        for number, answer in enumerate(answers):
            if number and not as_json:
                typer.echo()
            _print_answer(answer, form)


def _watch(selected: Callable[..., Any], timeout: float, seconds: float) -> NoReturn:
    """Show the answers until interrupted; a store that becomes unreachable is retried."""
    with showing(_cut) as show:
        is_first = True
        while True:
            try:
                with selected(seconds=timeout, as_json=False) as answers:
                    shown = [line for answer in answers for line in _lines(answer)]
            except StoreUnavailable as error:
                if is_first:
                    raise
                shown = [str(error)]
            is_first = False
            show(shown)
            time.sleep(seconds)


def _lines(answer: Selection) -> list[str]:
    found = list(table(answer.columns, answer.rows))
    count = len(found) - 2  # the header and the rule below it
    return [*found, f"({count:,} row{'' if count == 1 else 's'})"]


def _cut(line: str) -> Text:
    """A line that a terminal may cut."""
    return Text(line, no_wrap=True, overflow="ellipsis")


def _print_answer(answer: Selection, form: Format) -> None:
    if form == "csv":
        print_csv(answer.columns, answer.rows)
    elif form == "table":
        count = print_table(answer.columns, answer.rows)
        typer.echo(f"({count:,} row{'' if count == 1 else 's'})")
    else:
        _require_distinct(answer.columns)
        print_rows_as_json(answer.columns, answer.rows)


def _require_distinct(columns: list[str]) -> None:
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise UsageError(
            f"several columns are named {', '.join(twice)}, and JSON would keep only one of them: "
            "rename them with AS"
        )
