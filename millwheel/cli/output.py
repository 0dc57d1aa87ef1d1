"""Results on standard output: JSON, CSV, tables."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import typer
from rich.cells import cell_len


def print_json_line(value: Any) -> None:
    """One line, at once: somebody may wait for it."""
    sys.stdout.write(msgspec.json.encode(value, enc_hook=str).decode() + "\n")
    sys.stdout.flush()


def print_json(value: Any) -> None:
    """One line for machines, several for people."""
    data = msgspec.json.encode(value, enc_hook=str)
    if sys.stdout.isatty():
        data = msgspec.json.format(data)
    typer.echo(data.decode())


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str | None]]) -> int:
    """Print a table; gives the number of its rows."""
    count = -2  # the head
    for line in table(columns, rows):
        typer.echo(line)
        count += 1
    return count


def table(columns: Sequence[str], rows: Iterable[Sequence[str | None]]) -> Iterator[str]:
    """The lines of a table, as psql draws them; numbers to the right."""
    lines = [[_cell(value) for value in row] for row in rows]
    widths = [
        max(cell_len(name), *(cell_len(line[i]) for line in lines), 0)
        for i, name in enumerate(columns)
    ]
    to_the_right = [
        bool(lines) and all(_is_number(line[i]) for line in lines if line[i])
        for i in range(len(columns))
    ]
    yield " " + " | ".join(_pad(n, w, False) for n, w in zip(columns, widths, strict=True)).rstrip()
    yield "-" + "-+-".join("-" * width for width in widths) + "-"
    for line in lines:
        padded = map(_pad, line, widths, to_the_right)
        yield " " + " | ".join(padded).rstrip()


def _cell(value: str | None) -> str:
    """A value on one line; control characters, which a terminal might obey, as escapes."""
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
    """CSV with a head; NULL is empty, an empty text is quoted, as in Postgres."""
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
    """A JSON array with one object a row and a line."""
    write = sys.stdout.write
    before = "["
    for row in rows:
        line = msgspec.json.encode(dict(zip(columns, row, strict=True)), enc_hook=str)
        write(f"{before}\n{line.decode()}")
        before = ","
    write("[]\n" if before == "[" else "\n]\n")
