"""The help page of the program and of each command.

Sections without boxes, in one column of names and one of texts, so that a page reads at 60 columns
as well as at 120, and shows without importing rich. Examples stand at the end, next to the prompt.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap
from typing import Any

from typer.core import TyperCommand, TyperGroup

from millwheel.cli.terminal import styled
from millwheel.core.suggestion import with_suggestion

WIDEST = 100
"""Longest line of a page, in columns: longer ones are hard to read."""
NARROWEST = 30
"""Below this many columns a page is not folded any further."""

EXAMPLES = "Examples"

WORD = r"""(?:'[^']*'|"[^"]*"|\S)+"""
OPTION = r"--?[\w-]+"


class _Page:
    """The parts of a command that its page is made of."""

    def collect_usage_pieces(self: Any, ctx: Any) -> list[str]:
        arguments = [p for p in self.get_params(ctx) if p.param_type_name == "argument"]
        return ["[OPTIONS]", *map(_argument, arguments)]

    def format_help(self: Any, ctx: Any, formatter: Any) -> None:
        formatter.width = max(min(shutil.get_terminal_size().columns, WIDEST) - 1, NARROWEST)
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        self.format_options(ctx, formatter)
        self.format_epilog(ctx, formatter)

    def format_options(self: Any, ctx: Any, formatter: Any) -> None:
        for name, parameters in _by_panel(self.get_params(ctx)).items():
            _write(formatter, name, map(_entry, parameters))

    def format_epilog(self: Any, ctx: Any, formatter: Any) -> None:
        examples = self.examples(ctx)
        if not examples:
            return
        with formatter.section(styled(EXAMPLES, "heading")):
            for line in (line for example in examples for line in _example(example, formatter)):
                formatter.write(f"{' ' * formatter.current_indent}{line}\n")


class PageOfCommand(_Page, TyperCommand):
    """A command. Its epilog are examples, one a line, with a comment perhaps."""

    def examples(self, ctx: Any) -> list[str]:
        return (self.epilog or "").splitlines()


class PageOfGroup(_Page, TyperGroup):
    """A group of commands."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "COMMAND", "..."]

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        name = args[0]
        unknown = not name.startswith("-") and self.get_command(ctx, name) is None
        if unknown and not ctx.resilient_parsing:
            known = self.list_commands(ctx)
            ctx.fail(with_suggestion(f"no such command: {name}", name, known))
        found: tuple[Any, Any, list[str]] = super().resolve_command(ctx, args)
        return found

    def format_options(self, ctx: Any, formatter: Any) -> None:
        for name, entries in self.summaries(ctx).items():
            _write(formatter, name, entries)
        super().format_options(ctx, formatter)

    def summaries(self, ctx: Any) -> dict[str, list[tuple[str, str]]]:
        """By heading: names of commands, and the first sentences of their texts."""
        found = []
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                found.append((name, first_sentence(command.help or "")))
        return {"Commands": found}

    def examples(self, ctx: Any) -> list[str]:
        """The first example of each command."""
        commands = [self.get_command(ctx, name) for name in self.list_commands(ctx)]
        texts = [command.epilog or "" for command in commands if command is not None]
        return [line for text in texts for line in text.splitlines()[:1]]


def first_sentence(text: str) -> str:
    first, _, _ = " ".join(text.split()).partition(". ")
    return f"{first.rstrip('.')}."


def _by_panel(parameters: Iterable[Any]) -> dict[str, list[Any]]:
    """Visible parameters by the headings of their sections."""
    found: dict[str, list[Any]] = {}
    for one in parameters:
        if not getattr(one, "hidden", False):
            kind = "Arguments" if one.param_type_name == "argument" else "Options"
            found.setdefault(getattr(one, "rich_help_panel", None) or kind, []).append(one)
    return found


def _write(formatter: Any, heading: str, entries: Iterable[tuple[str, str]]) -> None:
    rows = [(styled(name, "name"), text) for name, text in entries]
    if rows:
        with formatter.section(styled(heading, "heading")):
            formatter.write_dl(rows, col_max=formatter.width // 3)


def _argument(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    if argument.nargs != 1 and not name.endswith("..."):
        name += "..."
    return name if argument.required else f"[{name}]"


def _entry(parameter: Any) -> tuple[str, str]:
    if parameter.param_type_name == "argument":
        return _argument(parameter), parameter.help or ""
    names = ", ".join(sorted(parameter.opts, key=len))
    text = parameter.help or ""
    given = parameter.default
    if not parameter.is_flag:
        names += f" {_value(parameter)}"
        if given not in (None, "", ()) and "Default" not in text:
            number = isinstance(given, int | float)
            text += f" Default: {given:g}." if number else f" Default: {given}."
    return names, text.strip()


def _value(option: Any) -> str:
    """The word that stands for an option's value."""
    if option.metavar:
        return str(option.metavar)
    kind = getattr(option, "type_descriptor", None) or getattr(option, "type", None)
    choices = getattr(kind, "choices", None)
    return "|".join(map(str, choices)) if choices else option.name.upper()


def _example(example: str, formatter: Any) -> Iterator[str]:
    """The lines of an example: its comment, and the command as a shell takes it."""
    command, _, comment = example.partition("  # ")
    width = formatter.width - formatter.current_indent
    for line in wrap(comment, width - 2):
        yield styled(f"# {line}", "note")
    yield from folded(command, width)


def folded(command: str, width: int) -> Sequence[str]:
    """A command in lines that a shell continues. Quotes and options stay whole."""
    lines = [""]
    for word in _units(command):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if len(longer) + 2 <= width or not lines[-1].strip():
            lines[-1] = longer
        else:
            lines[-1] += " \\"
            lines.append(f"    {word}")
    return lines


def _units(command: str) -> list[str]:
    """Words of a command, with their quotes; an option and its value are one."""
    found: list[str] = []
    for word in re.findall(WORD, command):
        if found and not word.startswith("-") and re.fullmatch(OPTION, found[-1]):
            found[-1] += f" {word}"
        else:
            found.append(word)
    return found
