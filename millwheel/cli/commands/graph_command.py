"""``millwheel graph``."""

from __future__ import annotations

from typing import Annotated

import typer

from millwheel.cli.command import command
from millwheel.cli.options import CommonOptions, Json, Target
from millwheel.cli.printing import print_json
from millwheel.cli.target import load_pipeline
from millwheel.errors import UsageError
from millwheel.graph import drawing

app = typer.Typer()


@command(app)
def graph(
    target: Target,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print a Mermaid flowchart.")] = False,
    as_json: Json = False,
    *,
    common: CommonOptions,
) -> None:
    """Check a pipeline's graph and print it. Nothing is started."""
    if mermaid and as_json:
        raise UsageError("choose one of --mermaid and --json")
    found = load_pipeline(target).graph()
    if as_json:
        print_json({"pipeline": found.name, **found.describe()})
    else:
        typer.echo(drawing.mermaid(found) if mermaid else drawing.text(found))
