"""Prints results as text, JSON, CSV or tables.

Keys, values and errors come from strangers: characters that a terminal obeys are escaped.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import typer
from rich.cells import cell_len

from millwheel.errors import UsageError

COLUMN_WIDTH = 60
"""Longest text in a table; ``--json`` has the whole text."""


def say(text: str, *, err: bool = False) -> None:
    """Print text; control characters but newlines and tabs are escaped."""
    typer.echo(escaped(text), err=err)


def escaped(text: str) -> str:
    """A text whose control characters, but newlines and tabs, are written as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else _escaped(c) for c in text)


def cut(text: str) -> str:
    return text if len(text) <= COLUMN_WIDTH else text[: COLUMN_WIDTH - 1] + "…"


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


def duration(seconds: float) -> str:
    """For example ``2 h 5 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    units = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    first = next(number for number, (_, size) in enumerate(units) if whole >= size)
    return " ".join(
        f"{whole % units[number - 1][1] // size if number > first else whole // size} {name}"
        for number, (name, size) in list(enumerate(units))[first : first + 2]
    )


def count_of(number: int, noun: str) -> str:
    """For example ``1 dead letter`` or ``2,000 dead letters``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def byte_text(size: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1024 or unit == "GB":
            return f"{size:,.0f} {unit}"
        size /= 1024
    raise AssertionError


def confirm(deletes: str, question: str, *, sure: bool) -> None:
    """Ask before something is deleted.

    Args:
        deletes: the consequence, for scripts without a terminal.
    """
    if sure:
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(f"{deletes}; confirm with --yes")
    typer.confirm(question, abort=True)


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


def _json_text(data: bytes) -> str:
    """JSON with escaped control characters."""
    text = data.decode()
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str | None]]) -> int:
    count = -2  # the header and the rule below it
    for line in table(columns, rows):
        typer.echo(line)
        count += 1
    return count


def table(columns: Sequence[str], rows: Iterable[Sequence[str | None]]) -> Iterator[str]:
    """The lines of a table in psql's style; numbers are right-aligned."""
    lines = [[_cell(value) for value in row] for row in rows]
    widths = [
        max(cell_len(name), *(cell_len(line[i]) for line in lines), 0)
        for i, name in enumerate(columns)
    ]
    to_the_right = [
        bool(lines) and all(_is_number(line[i]) for line in lines if line[i])
        for i in range(len(columns))
    ]
    yield (
        " " + " | ".join(_pad(n, w, False) for n, w in zip(columns, widths, strict=True)).rstrip()
    )
    yield "-" + "-+-".join("-" * width for width in widths) + "-"
    for line in lines:
        padded = map(_pad, line, widths, to_the_right)
        yield " " + " | ".join(padded).rstrip()


def _cell(value: str | None) -> str:
    if value is None:
        return ""
    if value.isprintable():
        return value
    return "".join(c if c.isprintable() else _escaped(c) for c in value)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _is_number(text: str) -> bool:
    return text.replace(",", "").lstrip("-").replace(".", "", 1).isdecimal()


def _pad(text: str, width: int, to_the_right: bool) -> str:
    space = " " * (width - cell_len(text))
    return space + text if to_the_right else text + space


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[str | None]]) -> None:
    """As in Postgres, NULL is empty and an empty text is quoted."""
    write = sys.stdout.write
    write(",".join(map(_quoted, columns)) + "\n")
    for row in rows:
        write(",".join(map(_quoted, row)) + "\n")


def _quoted(value: str | None) -> str:
    if value is None:
        return ""
    if value and not any(character in value for character in ',"\n\r'):
        return value
    return '"' + value.replace('"', '""') + '"'


def print_rows_as_json(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print an array with a line for each row."""
    write = sys.stdout.write
    before = "["
    for row in rows:
        line = msgspec.json.encode(dict(zip(columns, row, strict=True)), enc_hook=str)
        write(f"{before}\n{_json_text(line)}")
        before = ","
    write("[]\n" if before == "[" else "\n]\n")
