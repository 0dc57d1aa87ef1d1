"""Arguments and options that several commands have."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

Target = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:PIPELINE",
        help="For example examples.flights:pipeline. The current directory is searched first.",
        show_default=False,
    ),
]
Store = Annotated[
    str | None,
    typer.Option(
        metavar="URL|DIR",
        help=(
            "A postgresql:// URL, or the directory of an embedded Postgres. Default: "
            "$MILLWHEEL_STORE if set, otherwise .millwheel."
        ),
        show_default=False,
    ),
]
OnePipeline = Annotated[
    str | None,
    typer.Option(
        "--pipeline", "-p", metavar="NAME", help="The pipeline, if the store has several.",
        show_default=False,
    ),
]  # fmt: skip
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Reason = Annotated[
    str,
    typer.Option(metavar="TEXT", help="Why; `millwheel log` shows it.", show_default=False),
]
LogFormat = Annotated[
    Literal["text", "json"] | None,
    typer.Option(
        help=(
            "Form of log lines. Default: $MILLWHEEL_LOG_FORMAT, or text on a terminal and JSON "
            "otherwise."
        ),
        show_default=False,
    ),
]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"] | None,
    typer.Option(
        help="Least level of log lines. Default: $MILLWHEEL_LOG_LEVEL, or info.",
        show_default=False,
    ),
]
