"""docs/reference/commands.md, from the declared commands."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import typer.main

from millwheel.cli.command import COMMON
from millwheel.cli.main import app
from tests.docs.reference.markdown import code, page, prose, table

HEAD = """
`millwheel COMMAND --help` prints the same. Options of all commands are in the first table; they
stand before or after the command's name. The numbers with which commands end are
[exit codes](exit-codes.md).
"""


def commands_page() -> str:
    program: Any = typer.main.get_command(app)
    context = program.make_context("millwheel", [], resilient_parsing=True)
    common = [each for each in program.params if each.name in COMMON]
    return page(
        "Commands",
        prose(HEAD),
        _options(common),
        *(_section(path, command) for path, command in _leaves(program, context, "millwheel")),
    )


def _leaves(group: Any, context: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "list_commands"):
            inner = command.make_context(name, [], parent=context, resilient_parsing=True)
            yield from _leaves(command, inner, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def _section(path: str, command: Any) -> str:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [
        each
        for each in command.params
        if each.param_type_name == "option" and each.name != "help" and not each.hidden
    ]
    usage = " ".join([path, *map(_argument, arguments), *(["[OPTIONS]"] if options else [])])
    parts = [
        f"## {path}",
        f"```text\n{usage}\n```",
        prose(inspect.cleandoc(command.help or "")),
        _arguments(arguments),
        _options(options),
    ]
    return "\n\n".join(part for part in parts if part)


def _argument(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    name = name.strip("{}[]")
    shown = f"{name}..." if argument.nargs == -1 else name
    return shown if argument.required else f"[{shown}]"


def _arguments(arguments: list[Any]) -> str:
    rows = [(code(_argument(each)), each.help or "") for each in arguments]
    return table(["argument", "meaning"], [row for row in rows if row[1]])


def _options(options: list[Any]) -> str:
    return table(["option", "meaning"], [(_option(each), each.help or "") for each in options])


def _option(option: Any) -> str:
    names = ", ".join(code(name) for name in [*option.opts, *option.secondary_opts])
    if option.is_flag or option.count:
        return names
    kind = option.type_descriptor.annotation
    choices = "|".join(map(str, get_args(kind))) if get_origin(kind) is Literal else ""
    value = option.metavar or choices or getattr(kind, "__name__", "value").upper()
    return f"{names} {code(value)}"
