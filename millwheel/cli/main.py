"""The program ``millwheel``; each command is imported when it is used."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from millwheel.cli.command import expanded
from millwheel.cli.help_page import PageOfGroup
from millwheel.cli.options import CommonOptions
from millwheel.cli.reporting import reporting
from millwheel.cli.usage_errors import EXIT_CODE, WrongWords, print_usage_error

RUN, LOOK, CHANGE = "Run", "Look", "Change and deploy"
MEND, COPY, SPARK, STORE = "Mend", "Copies of a pipeline", "Spark", "Store"
"""Headings of the help page, in its order."""

COMMANDS = {
    "new": (
        "new_command",
        "Make a project: a pipeline with input, a test, and files to deploy it.",
        RUN,
    ),
    "dev": (
        "dev_command",
        "Run a pipeline, show the rows of its sinks, and start it again when its code changes.",
        RUN,
    ),
    "run": ("run_command", "Run a pipeline until its input is processed.", RUN),
    "worker": ("worker_command", "Run one of several workers that share a pipeline.", RUN),
    "pause": ("operator_commands", "Stop injectors from reading.", RUN),
    "resume": ("operator_commands", "Let paused injectors continue where they stopped.", RUN),
    "outputs": ("outputs_command", "Let a pipeline write outside the store, or not.", RUN),
    "doctor": (
        "doctor_command",
        "Check the store, this machine and a pipeline before a worker starts.",
        LOOK,
    ),
    "graph": ("graph_command", "Check a pipeline's graph and print it.", LOOK),
    "status": ("status_command", "Show workers, watermarks, backlog and counters.", LOOK),
    "ui": (
        "ui_command",
        "Serve pages that show the pipelines of a store, and change them.",
        LOOK,
    ),
    "sql": ("sql_command", "Run read-only SQL on the store's tables and views.", LOOK),
    "log": ("operator_commands", "Show the requests and operations of operators.", LOOK),
    "plan": ("deploy_commands", "Show what a deploy of this code would change.", CHANGE),
    "migrate": ("store_commands", "Create or upgrade a pipeline's schema.", CHANGE),
    "rollback": ("deploy_commands", "Deploy the code of a former generation again.", CHANGE),
    "query": (
        "query_commands",
        "Submit queries to a pipeline that runs, replace or drop them.",
        CHANGE,
    ),
    "remove": ("store_commands", "Delete computations and their state from a pipeline.", CHANGE),
    "dead-letters": (
        "dead_letter_commands",
        "List, retry, export or discard records that failed for good.",
        MEND,
    ),
    "set-aside": (
        "operator_commands",
        "Make a dead letter of a record or row that stops the pipeline.",
        MEND,
    ),
    "state": ("key_commands", "Show or change the state of a key.", MEND),
    "timers": ("key_commands", "Cancel a timer of a key, or let it fire now.", MEND),
    "intervals": ("interval_commands", "List, move, split or merge key intervals.", MEND),
    "savepoint": (
        "copy_commands",
        "Copy a pipeline as it is at this moment, while it runs.",
        COPY,
    ),
    "savepoints": ("copy_commands", "List, show or drop savepoints.", COPY),
    "fork": (
        "copy_commands",
        "Copy a pipeline to another name, to run beside it from the same positions.",
        COPY,
    ),
    "restore": (
        "restore_command",
        "Bring a pipeline back to a savepoint.",
        COPY,
    ),
    "diff": ("diff_command", "Compare two pipelines or savepoints row by row.", COPY),
    "reprocess": (
        "reprocess_command",
        "Run new code over the input beside a pipeline, to take its place.",
        COPY,
    ),
    "publish": (
        "switch_commands",
        "Let readers use names that stay when another pipeline takes over.",
        COPY,
    ),
    "published": (
        "switch_commands",
        "List the names that readers use, and the pipeline that each leads to.",
        COPY,
    ),
    "unpublish": ("switch_commands", "Drop names that readers use.", COPY),
    "switch": (
        "switch_commands",
        "Let another pipeline take over: its tables get the names that readers use, its sinks "
        "write.",
        COPY,
    ),
    "spark": ("spark_commands", "Run a pipeline or its aggregates on Spark.", SPARK),
    "drop": ("store_commands", "Drop a pipeline with its state, timers and results.", STORE),
    "stop": ("store_commands", "Stop the embedded Postgres of a directory.", STORE),
    "url": ("store_commands", "Print the URL of a directory's embedded Postgres.", STORE),
}
"""By name: the module in `millwheel.cli.commands`, the first sentence of the help text, and the
heading of the help page under which it stands."""

COMPLETION = "_MILLWHEEL_COMPLETE"
"""A shell sets this variable to ask for words."""

EXAMPLES = [
    "millwheel run zeitgeist:pipeline  # the object `pipeline` in zeitgeist.py",
    "millwheel status",
    "millwheel dead-letters list  # records that failed for good",
]


class LazyCommands(Mapping[str, Any]):
    """Commands by name, imported on access."""

    def __getitem__(self, name: str) -> Any:
        module, summary, _ = COMMANDS[name]
        with reporting(debug=False):
            app = import_module(f"millwheel.cli.commands.{module}").app
        found = get_group(app).commands[name]
        found.help = found.help or summary
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class Program(PageOfGroup):
    """The program. Its help page imports no command."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: Any = LazyCommands()

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def summaries(self, ctx: Any) -> dict[str, list[tuple[str, str]]]:
        found: dict[str, list[tuple[str, str]]] = {}
        for heading in (RUN, LOOK, CHANGE, MEND, COPY, SPARK, STORE):
            found[heading] = [
                (name, text) for name, (_, text, its) in COMMANDS.items() if its == heading
            ]
        return found

    def examples(self, ctx: Any) -> list[str]:
        return EXAMPLES

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        listed = TyperGroup(
            name=self.name,
            params=self.params,
            commands=[TyperCommand(name, help=text) for name, (_, text, _) in COMMANDS.items()],
        )
        return listed.shell_complete(type(ctx)(listed, info_name=ctx.info_name), incomplete)

    def _main_shell_completion(self, *args: Any, **extra: Any) -> None:
        if os.environ.get(COMPLETION):
            from millwheel.cli.shell_completion import answering

            with answering(os.environ):
                super()._main_shell_completion(*args, **extra)

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run, and print errors in the words as all errors are printed."""
        standalone, extra["standalone_mode"] = extra.get("standalone_mode", True), False
        if not standalone:
            return super().main(*args, **extra)
        try:
            code = super().main(*args, **extra)
        except WrongWords as error:
            print_usage_error(error)
            code = EXIT_CODE
        except typer.Abort:
            typer.echo("aborted", err=True)
            code = 1
        sys.exit(code or 0)


app = typer.Typer(
    name="millwheel",
    cls=Program,
    help="Per-record stream processing with exactly-once state, on Postgres. The options and "
    "examples of a command: millwheel COMMAND --help.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from millwheel import __version__  # slow to import

        typer.echo(f"millwheel {__version__}")
        raise typer.Exit


def _install_completion(context: typer.Context, option: typer.CallbackParam, wanted: bool) -> None:
    if wanted:
        from typer.completion import install_callback

        install_callback(context, option, wanted)


def _show_completion(context: typer.Context, option: typer.CallbackParam, wanted: bool) -> None:
    if wanted:
        from typer.completion import show_callback

        show_callback(context, option, wanted)


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
    install_completion: Annotated[
        bool,
        typer.Option(
            "--install-completion",
            help="Complete words in this shell: bash, zsh or fish.",
            callback=_install_completion,
            is_eager=True,
        ),
    ] = False,
    show_completion: Annotated[
        bool,
        typer.Option(
            "--show-completion",
            help="Print the script for that.",
            callback=_show_completion,
            is_eager=True,
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point."""
    app(prog_name="millwheel")


if __name__ == "__main__":
    main()
