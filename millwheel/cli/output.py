"""Results on standard output: JSON, CSV, tables."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import typer

from millwheel.cli.display import table


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
