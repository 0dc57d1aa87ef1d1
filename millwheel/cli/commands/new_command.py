"""``millwheel new``: make a project."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from millwheel.cli.command import command
from millwheel.cli.options import CommonOptions
from millwheel.cli.printing import say
from millwheel.cli.project_templates import TEMPLATES, commands_of, files_of, name_of, write

TemplateName = Literal["counts", "orders", "kafka", "sql"]

app = typer.Typer()


@command(app, examples=["millwheel new shop", "millwheel new shop --template orders"])
def new(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="A new or an empty directory. The project has its name."
        ),
    ],
    template: Annotated[
        TemplateName,
        typer.Option(
            help="Project to begin with: "
            + "; ".join(f"{name}: {found.summary}" for name, found in TEMPLATES.items())
            + "."
        ),
    ] = "counts",
    *,
    common: CommonOptions,
) -> None:
    """Make a project: a pipeline with input, a test, and files to deploy it."""
    name = name_of(directory)
    texts = files_of(template, name)
    write(directory, texts)
    say(f"made {name} in {directory}: {', '.join(texts)}")
    for section in ("Try it", "Kill it"):
        say(f"\n{section}:\n")
        if section == "Try it":
            say(f"  cd {directory}")
        for line in commands_of(texts["README.md"], section):
            say(f"  {line}")
    say(f"\n{directory / 'README.md'} says more.")
