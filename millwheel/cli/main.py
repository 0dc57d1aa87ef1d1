"""The program ``millwheel``; each command is imported when it is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from millwheel.cli.command import expanded
from millwheel.cli.options import CommonOptions
from millwheel.cli.reporting import reporting

COMMANDS = {
    "run": ("run_command", "Run a pipeline until its input is processed."),
    "worker": ("worker_command", "Run one of several workers that share a pipeline."),
    "doctor": (
        "doctor_command",
        "Check the store, this machine and a pipeline before a worker starts.",
    ),
    "graph": ("graph_command", "Check a pipeline's graph and print it."),
    "plan": ("deploy_commands", "Show what a deploy of this code would change."),
    "rollback": ("deploy_commands", "Deploy the code of a former generation again."),
    "migrate": ("store_commands", "Create or upgrade a pipeline's schema."),
    "status": ("status_command", "Show workers, watermarks, backlog and counters."),
    "pause": ("operator_commands", "Stop injectors from reading."),
    "resume": ("operator_commands", "Let paused injectors continue where they stopped."),
    "set-aside": (
        "operator_commands",
        "Make a dead letter of a record or row that stops the pipeline.",
    ),
    "log": ("operator_commands", "Show the requests and operations of operators."),
    "sql": ("sql_command", "Run read-only SQL on the store's tables and views."),
    "intervals": ("interval_commands", "List, move, split or merge key intervals."),
    "state": ("key_commands", "Show or change the state of a key."),
    "timers": ("key_commands", "Cancel a timer of a key, or let it fire now."),
    "dead-letters": (
        "dead_letter_commands",
        "List, retry, export or discard records that failed for good.",
    ),
    "query": ("query_commands", "Submit queries to a pipeline that runs, replace or drop them."),
    "spark": ("spark_commands", "Run a pipeline or its aggregates on Spark."),
    "remove": ("store_commands", "Delete computations and their state from a pipeline."),
    "drop": ("store_commands", "Drop a pipeline with its state, timers and results."),
    "stop": ("store_commands", "Stop the embedded Postgres of a directory."),
    "url": ("store_commands", "Print the URL of a directory's embedded Postgres."),
}
"""The modules of `millwheel.cli.commands`, and the first sentences of the help texts."""


class LazyCommands(Mapping[str, Any]):
    """Commands by name, imported on access."""

    def __getitem__(self, name: str) -> Any:
        module, summary = COMMANDS[name]
        with reporting(debug=False):
            app = import_module(f"millwheel.cli.commands.{module}").app
        found = get_group(app).commands[name]
        found.help = found.help or summary
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class Program(TyperGroup):
    """The program. Its help text imports no command."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: Any = LazyCommands()

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        listed = TyperGroup(
            name=self.name,
            help=self.help,
            params=self.params,
            rich_markup_mode=self.rich_markup_mode,
            commands=[TyperCommand(name, help=text) for name, (_, text) in COMMANDS.items()],
        )
        listed.format_help(ctx, formatter)


app = typer.Typer(
    name="millwheel",
    cls=Program,
    help="Per-record stream processing with exactly-once state, on Postgres.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from millwheel import __version__  # slow to import

        typer.echo(f"millwheel {__version__}")
        raise typer.Exit


@app.callback()
@expanded
def _program(
    common: CommonOptions,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point."""
    app()


if __name__ == "__main__":
    main()
