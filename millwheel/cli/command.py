"""Declares a command: the parameters of its function are the options, its body is the work.

A parameter of the type `OptionGroup` stands for the options that are its fields. The
`CommonOptions` belong to the program, and are accepted after each command's name as well.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, fields
from inspect import Parameter
from typing import Any, TypeVar, get_type_hints

import typer

from millwheel.cli.awaiting import awaited
from millwheel.cli.help_page import PageOfCommand, PageOfGroup
from millwheel.cli.options import CommonOptions, OptionGroup
from millwheel.cli.reporting import configure_log, foreign_paths, reporting

F = TypeVar("F", bound=Callable[..., None])

COMMON = tuple(field.name for field in fields(CommonOptions))
CONTEXT = Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context)


class CommandWithCommonOptions(PageOfCommand):
    """A command that takes the program's options after its own name."""

    def get_params(self, ctx: Any) -> list[Any]:
        common = [p for p in ctx.find_root().command.params if p.name in COMMON]
        return [*super().get_params(ctx), *common]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments; common options go to the program."""
        rest = super().parse_args(ctx, args)
        for name in COMMON:
            value, source = ctx.params.pop(name, None), ctx.get_parameter_source(name)
            if source is not None and source.name == "COMMANDLINE":
                ctx.find_root().params[name] = value
        return rest


def group(app: typer.Typer, name: str) -> typer.Typer:
    """A group of commands, added to `app`."""
    made = typer.Typer(cls=PageOfGroup, no_args_is_help=True)
    app.add_typer(made, name=name)
    return made


def command(
    app: typer.Typer, name: str | None = None, *, examples: Sequence[str] = ()
) -> Callable[[F], F]:
    """Make a command of a function. Its parameter ``common`` gets the `CommonOptions`.

    Args:
        examples: one to three commands for the help page, each with a comment perhaps:
            ``millwheel url  # a comment``.
    """

    def register(function: F) -> F:
        parameters = [p for p in _parameters(function) if p.annotation is not CommonOptions]

        @functools.wraps(function)
        def run(context: typer.Context, **given: Any) -> None:
            program = context.find_root().params
            common = CommonOptions(**{name: program[name] for name in COMMON})
            with reporting(debug=common.debug):
                configure_log(common.log_format, common.log_level)
                with awaited(foreign_paths()):
                    function(**_grouped(parameters, given), common=common)

        _declare(run, [CONTEXT, *_options(parameters)])
        declared = app.command(name, cls=CommandWithCommonOptions, epilog="\n".join(examples))
        declared(run)
        return function

    return register


def expanded(function: F) -> F:
    """A function with options in place of its groups."""
    parameters = _parameters(function)

    @functools.wraps(function)
    def run(**given: Any) -> None:
        function(**_grouped(parameters, given))

    _declare(run, list(_options(parameters)))
    return run  # type: ignore[return-value]


def _parameters(function: Callable[..., None]) -> list[Parameter]:
    return list(inspect.signature(function, eval_str=True).parameters.values())


def _is_group(parameter: Parameter) -> bool:
    kind = parameter.annotation
    return isinstance(kind, type) and issubclass(kind, OptionGroup)


def _options(parameters: list[Parameter]) -> Iterator[Parameter]:
    for parameter in parameters:
        if not _is_group(parameter):
            yield parameter.replace(kind=Parameter.KEYWORD_ONLY)
            continue
        hints = get_type_hints(parameter.annotation, include_extras=True)
        for field in fields(parameter.annotation):
            default = Parameter.empty if field.default is MISSING else field.default
            yield Parameter(
                field.name, Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name]
            )


def _grouped(parameters: list[Parameter], given: dict[str, Any]) -> dict[str, Any]:
    return {
        p.name: p.annotation(**{f.name: given[f.name] for f in fields(p.annotation)})
        if _is_group(p)
        else given[p.name]
        for p in parameters
    }


def _declare(function: Callable[..., None], parameters: list[Parameter]) -> None:
    """Set the signature and the annotations, both of which typer reads."""
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {p.name: p.annotation for p in parameters}
