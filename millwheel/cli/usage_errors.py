"""Errors in the words of a command: printed as all others are, with the nearest name."""

from __future__ import annotations

from typing import Any

import typer

from millwheel.cli.reporting import print_error
from millwheel.core.suggestion import with_suggestion

WrongWords: Any = typer.BadParameter.__base__
"""The base of the errors that the parser of a command's words raises, in each version of typer."""

EXIT_CODE = 2


def print_usage_error(error: Any) -> None:
    """Print an error, and where to look; or the help page of a group that was called alone."""
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(error.format_message(), err=True)
        return
    print_error(_message(error))
    if error.ctx is not None:
        typer.echo(f"{error.ctx.get_usage()}\nSee: {error.ctx.command_path} --help", err=True)


def _message(error: Any) -> str:
    name = getattr(error, "option_name", None)
    if name is None or not hasattr(error, "possibilities") or error.ctx is None:
        return str(error.format_message())
    known = [option for p in error.ctx.command.get_params(error.ctx) for option in p.opts]
    return with_suggestion(f"no such option: {name}", name, known)
