"""Errors in the words of a command: printed as all others are, with the nearest name."""

from __future__ import annotations

import re
from typing import Any

import typer

from millwheel.cli.reporting import print_error
from millwheel.core.suggestion import with_suggestion

WrongWords: Any = typer.BadParameter.__base__
"""The base of the errors that the parser of a command's words raises, in each version of typer."""

EXIT_CODE = 2

NOT_ONE_OF = " is not one of "
"""Between a wrong value and those that an option takes."""


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
    if name is not None and hasattr(error, "possibilities") and error.ctx is not None:
        known = [option for p in error.ctx.command.get_params(error.ctx) for option in p.opts]
        return with_suggestion(f"no such option: {name}", name, known)
    message = str(error.format_message()).rstrip(".")
    if NOT_ONE_OF not in message:
        return message
    given, *known = re.findall("'([^']*)'", message.partition(": ")[2])
    return with_suggestion(message, given, known)
