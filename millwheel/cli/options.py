"""Options and arguments of several commands; see `millwheel.cli.command`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from millwheel.errors import UsageError

if TYPE_CHECKING:
    from millwheel.pipeline import Pipeline
    from millwheel.services.endpoint import Endpoint
    from millwheel.services.ingesting import IngestOptions
    from millwheel.store.address import StoreAddress

COMMON = "Common options"


def _targets(incomplete: str) -> list[str]:
    from millwheel.cli.targets_here import targets  # only a shell asks

    return targets(incomplete)


Target = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:PIPELINE",
        help="For example examples.flights:pipeline. The current directory is searched first.",
        autocompletion=_targets,
    ),
]
AS = "MILLWHEEL_AS"

OtherName = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="NAME",
        help="Name of the pipeline, if it is not the one in the code: a fork has another. Default: "
        "$MILLWHEEL_AS if set.",
    ),
]
PipelineName = Annotated[str, typer.Argument(metavar="PIPELINE", help="Name of the pipeline.")]
OnePipeline = Annotated[
    str | None,
    typer.Option(
        "--pipeline", "-p", metavar="NAME", help="The pipeline, if the store has several."),
]  # fmt: skip
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Why; `millwheel log` shows it.")]
KeepOpen = Annotated[
    bool,
    typer.Option(
        "--keep-open",
        help="Keep windows open after a bounded input has been read, so that rows appended later "
        "are accepted. Without it event time ends there.",
    ),
]


class OptionGroup:
    """Base of dataclasses with options or arguments as fields."""


@dataclass(frozen=True)
class CommonOptions(OptionGroup):
    """Options of the program, given before or after the command's name."""

    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL|DIR",
            help="A postgresql:// URL, or the directory of an embedded Postgres. Default: "
            "$MILLWHEEL_STORE if set, otherwise .millwheel.",
            rich_help_panel=COMMON,
        ),
    ] = None
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Show the traceback of an error.", rich_help_panel=COMMON),
    ] = False
    log_format: Annotated[
        Literal["text", "json"] | None,
        typer.Option(
            help="Form of log lines. Default: $MILLWHEEL_LOG_FORMAT, or text on a terminal and "
            "JSON otherwise.",
            rich_help_panel=COMMON,
        ),
    ] = None
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"] | None,
        typer.Option(
            help="Lowest level of log lines. Default: $MILLWHEEL_LOG_LEVEL, or info.",
            rich_help_panel=COMMON,
        ),
    ] = None

    @property
    def address(self) -> StoreAddress:
        from millwheel.store.address import StoreAddress  # slow to import, and `--help` is not

        return StoreAddress.parse(self.store)


@dataclass(frozen=True)
class CodeOptions(OptionGroup):
    """The code of a pipeline, and the pipeline that it is for."""

    target: Target
    other_name: OtherName = None

    def load(self) -> Pipeline:
        """Import the code, and give its pipeline the name that was asked for."""
        from millwheel.cli.target import load_pipeline  # slow to import, and `--help` is not

        return load_pipeline(self.target, self.name)

    @property
    def name(self) -> str | None:
        """The name to run under; None: that in the code."""
        return self.other_name or os.environ.get(AS) or None

    @property
    def words(self) -> str:
        """The arguments of another command for the same code and pipeline."""
        return " ".join([self.target, *self.options])

    @property
    def options(self) -> list[str]:
        return [] if self.name is None else ["--as", self.name]


def code_if_any(target: str, other_name: str | None) -> CodeOptions | None:
    """The code of an argument MODULE:PIPELINE|NAME; None: it is a name.

    Raises:
        UsageError: it is a name, and another one is given.
    """
    from millwheel.cli.target import is_target  # slow to import

    if is_target(target):
        return CodeOptions(target, other_name)
    if other_name is not None:
        raise UsageError(
            f"--as {other_name} renames the pipeline of code, and {target!r} is a name: give "
            "MODULE:PIPELINE with --as, or a name alone"
        )
    return None


@dataclass(frozen=True)
class InputOptions(OptionGroup):
    keep_open: KeepOpen = False
    accept_late: Annotated[
        bool,
        typer.Option(
            "--accept-late",
            help="Treat rows that arrive after the end of event time as late instead of failing.",
        ),
    ] = False


@dataclass(frozen=True)
class ServingOptions(OptionGroup):
    http: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve /healthz, /readyz, /metrics and /status on this address.",
        ),
    ] = None
    ingest: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Take records over HTTP on this address (POST /streams/NAME), for streams with "
            "an Inbox.",
        ),
    ] = None
    ingest_tokens: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Bearer tokens, one of which each request must have. Default: "
            "$MILLWHEEL_INGEST_TOKENS. Needed beyond loopback.",
        ),
    ] = None

    def endpoint(self) -> Endpoint | None:
        from millwheel.services.endpoint import Endpoint

        return None if self.http is None else Endpoint.parse(self.http)

    def ingestion(self) -> IngestOptions | None:
        from millwheel.services.ingesting import IngestOptions

        return IngestOptions.parse(self.ingest, self.ingest_tokens)


@dataclass(frozen=True)
class ChangeOptions(OptionGroup):
    """A change that `millwheel log` shows."""

    reason: Reason = ""
    as_json: Json = False


@dataclass(frozen=True)
class OperationOptions(ChangeOptions):
    pipeline: OnePipeline = None


@dataclass(frozen=True)
class RequestOptions(OperationOptions):
    """A change that workers carry out."""

    wait: Annotated[
        float,
        typer.Option(
            min=0.0, metavar="SECONDS", help="How long to wait for the outcome; 0: do not wait."
        ),
    ] = 30.0
