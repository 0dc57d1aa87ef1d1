"""Prints results as text, JSON, CSV or tables.

Keys, values and errors come from strangers: characters that a terminal obeys are escaped.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import Any

import msgspec
import typer
from rich.cells import cell_len

from millwheel.cli.terminal import styled, width_of
from millwheel.core.csv_line import csv_line
from millwheel.errors import UsageError

HELD_SPACE = "\x00"
COMMAND = r"(?<=: )millwheel .*?(?=[.;,] |[.;,]?$)"


def say(text: str, *, err: bool = False) -> None:
    """Print text; control characters but newlines and tabs are escaped."""
    typer.echo(escaped(text), err=err)


def tell(text: str, style: str | None = None, *, err: bool = False) -> None:
    """Print a sentence, which a terminal folds at words."""
    for line in sentence_lines(text, width_of(sys.stderr if err else sys.stdout)):
        typer.echo(styled(line, style, err=err), err=err)


def sentence_lines(text: str, width: int | None) -> list[str]:
    """A sentence in lines of a width (None: in one), indented as it is. A command in it stays
    whole, for copying."""
    text = escaped(text).replace("\n", "\\n")
    if width is None or cell_len(text) < width:
        return [text]
    indent = " " * (len(text) - len(text.lstrip()))
    text = re.sub(COMMAND, lambda command: command[0].replace(" ", HELD_SPACE), text)
    lines = wrap(
        text.lstrip(), width - 1, initial_indent=indent, subsequent_indent=f"{indent}  ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return [line.replace(HELD_SPACE, " ") for line in lines]


def escaped(text: str) -> str:
    """Escape the control characters of a text, but newlines and tabs."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else _escaped(c) for c in text)


def shortened(text: str, cells: int) -> str:
    """A text of at most so many cells of a terminal; one that is cut ends with an ellipsis."""
    if cell_len(text) <= cells:
        return text
    room = cells - 1
    for number, character in enumerate(text):
        room -= cell_len(character)
        if room < 0:
            return f"{text[:number]}…"
    return text


def seconds_text(text: str) -> str:
    """An ISO time in UTC, as a terminal shows it: to the second."""
    return text[:19].replace("T", " ") if sys.stdout.isatty() else text


def confirm(deletes: str, question: str, *, sure: bool, option: str = "--yes") -> None:
    """Ask before something is deleted.

    Args:
        deletes: the consequence, for scripts without a terminal.
        option: gives the consent in a script.
    """
    if sure:
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(f"{deletes}; confirm with {option}")
    typer.confirm(question, abort=True, err=True)


def print_json_line(value: Any) -> None:
    """Print one line of JSON and flush: the reader may wait for it."""
    sys.stdout.write(_json_text(msgspec.json.encode(value, enc_hook=str)) + "\n")
    sys.stdout.flush()


def print_json(value: Any) -> None:
    """Print JSON, indented on a terminal."""
    data = msgspec.json.encode(value, enc_hook=str)
    if sys.stdout.isatty():
        data = msgspec.json.format(data)
    typer.echo(_json_text(data))


def print_result(value: Any, lines: Iterable[str], *, as_json: bool) -> None:
    """Print the result of a command: a JSON document, or sentences."""
    if as_json:
        print_json(value)
        return
    for line in lines:
        tell(line)


def _json_text(data: bytes) -> str:
    """JSON with escaped control characters."""
    text = data.decode()
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def escaped_line(text: str) -> str:
    """Escape the control characters of a text, newlines included."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[str | None]]) -> None:
    """As in Postgres, NULL is empty and an empty text is quoted."""
    write = sys.stdout.write
    write(csv_line(columns))
    for row in rows:
        write(csv_line(row))


def print_rows_as_json(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print an array with a line for each row."""
    write = sys.stdout.write
    before = "["
    for row in rows:
        line = msgspec.json.encode(dict(zip(columns, row, strict=True)), enc_hook=str)
        write(f"{before}\n{_json_text(line)}")
        before = ","
    write("[]\n" if before == "[" else "\n]\n")
