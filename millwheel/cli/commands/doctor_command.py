"""``millwheel doctor``."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from millwheel.cli.command import command
from millwheel.cli.options import CommonOptions, Json, OptionGroup, OtherName, code_if_any
from millwheel.cli.printing import print_json, say
from millwheel.core.names import check_name
from millwheel.core.quantities import count_of
from millwheel.pipeline import Pipeline
from millwheel.services.doctor.diagnosis import PlannedWorkers, diagnose
from millwheel.services.doctor.findings import Finding

COLORS = {"ok": "green", "warning": "yellow", "missing": "red"}
MARGIN = 24
"""Width of the state and the name of a check."""

MOST_COLUMNS = 110
TRY_PORT = "Try whether a worker could listen there."

app = typer.Typer()


@dataclass(frozen=True)
class PlannedOptions(OptionGroup):
    """The workers that are to run."""

    workers: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of workers that are to run.")
    ] = 1
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help=TRY_PORT)] = None
    http: Annotated[str | None, typer.Option(metavar="HOST:PORT", help=TRY_PORT)] = None
    ingest: Annotated[str | None, typer.Option(metavar="HOST:PORT", help=TRY_PORT)] = None

    def planned(self) -> PlannedWorkers:
        return PlannedWorkers(self.workers, self.listen, self.http, self.ingest)


@command(
    app,
    examples=[
        "millwheel doctor --store postgresql://db.example.org/shop",
        "millwheel doctor zeitgeist:pipeline --workers 3 --http 0.0.0.0:8080",
    ],
)
def doctor(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:PIPELINE|NAME", help="A pipeline that is to run, or its name."
        ),
    ] = None,
    other_name: OtherName = None,
    planned: PlannedOptions = PlannedOptions(),
    as_json: Json = False,
    *,
    common: CommonOptions,
) -> None:
    """Check the store, this machine and a pipeline before a worker starts. Nothing is changed.

    If anything is missing, the exit code is that of a worker which meets it.
    """
    load: Callable[[], Pipeline] | str | None = None
    if target is not None:
        code = code_if_any(target, other_name)
        load = check_name(target, "pipeline") if code is None else code.load
    address = common.address
    found: list[Finding] = []
    if not as_json:
        say(f"store {address.redacted()}\n")
    for finding in diagnose(address, load, planned.planned()):
        found.append(finding)
        if not as_json:
            _show(finding)
    missing = [finding for finding in found if finding.state == "missing"]
    warnings = [finding for finding in found if finding.state == "warning"]
    if as_json:
        print_json(
            {
                "store": address.redacted(),
                "missing": len(missing),
                "warnings": len(warnings),
                "findings": [asdict(finding) for finding in found],
            }
        )
    else:
        say(f"\n{_conclusion(missing, warnings)}")
    if missing:
        raise typer.Exit(missing[0].exit_code)


def _show(finding: Finding) -> None:
    state = typer.style(f"{finding.state:<8}", fg=COLORS[finding.state], bold=finding.state != "ok")
    typer.echo(state + f" {finding.check:<{MARGIN - 10}} ", nl=False)
    if finding.state == "ok":
        _say_lines("", f"{finding.found} · {finding.why}")
        return
    _say_lines("", finding.found)
    _say_lines("why", finding.why)
    for number, remedy in enumerate(finding.remedy):
        _say_lines("or" if number else "do", remedy, wrapped=False)


def _say_lines(word: str, text: str, *, wrapped: bool = True) -> None:
    """Say a text in the right column, after a word in the margin. Statements, and lines in a pipe,
    are not wrapped: they can be copied, and `grep` finds whole sentences."""
    lines = [text]
    if wrapped and sys.stdout.isatty():
        width = min(MOST_COLUMNS, shutil.get_terminal_size().columns) - MARGIN
        lines = textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)
    say((f"{word:>{MARGIN - 2}}  " if word else "") + lines[0])
    for line in lines[1:]:
        say(" " * MARGIN + line)


def _conclusion(missing: list[Finding], warnings: list[Finding]) -> str:
    parts = []
    if warnings:
        parts.append(f"{count_of(len(warnings), 'warning')}: {_names(warnings)}")
    if missing:
        parts.append(
            f"missing: {_names(missing)}. A worker would end with exit code {missing[0].exit_code}"
        )
    else:
        parts.append("nothing is missing")
    return "; ".join(parts)


def _names(findings: list[Finding]) -> str:
    return ", ".join(dict.fromkeys(finding.check for finding in findings))
