"""The sources that a pipeline names: one or more files, each a partition."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from millwheel.errors import UsageError
from millwheel.files.csv_rows import CsvFormat, Dialect
from millwheel.files.json_lines import JsonLinesFormat
from millwheel.files.packed import open_bytes
from millwheel.files.rows import RowFormat, listed
from millwheel.files.whole import WholeFileReader
from millwheel.sources import Partition

AnyPath: TypeAlias = "str | os.PathLike[str]"
MakeFormat: TypeAlias = Callable[[str, Any], RowFormat]
"""Of a file's name and the type of its rows."""
MAX_ROW_BYTES = 8 << 20
"""The default limit of one row's bytes; a longer row is a bad row and is never kept whole."""


@dataclass(frozen=True)
class FilePartition:
    """One file."""

    path: str
    """As given."""
    absolute: str
    member: str | None
    make_format: MakeFormat

    @property
    def identity(self) -> str:
        """The absolute path, and the member as given: ``/data/all.zip!2013.csv``.

        Made from what the program says, not from what is on disk: it is known without the
        file, and a symbolic link that is turned to a newer release keeps its name. A file
        that is moved, or named otherwise, is another file and is read from its start.
        """
        return self.absolute if self.member is None else f"{self.absolute}!{self.member}"

    async def open(self, value_type: Any, position: dict[str, Any] | None) -> WholeFileReader:
        """Start at a stored position, or at the beginning.

        Hashes what was acknowledged before: about 1 s per GB; gzip and zip are unpacked for it.

        Raises:
            InputError: the file is missing, damaged or no such file, or acknowledged rows of
                it have changed.
            UsageError: rows cannot become values of this type.
        """
        name, source = open_bytes(self.path, self.absolute, self.member)
        try:
            reader = WholeFileReader(format_of(self.make_format, name, value_type), source)
            await reader.begin(position)
        except BaseException:
            source.close()
            raise
        return reader


def format_of(make: MakeFormat, name: str, value_type: Any) -> RowFormat:
    """The format for rows of a type.

    Raises:
        UsageError: rows cannot become values of this type.
    """
    try:
        return make(name, value_type)
    except (TypeError, NotImplementedError, NameError) as error:
        raise UsageError(f"{name}: rows cannot be read as {value_type!r}: {error}") from error


class Files(ABC):
    """One or more files; each is a partition."""

    def __init__(
        self, path: AnyPath | Sequence[AnyPath], member: str | None, max_row_bytes: int
    ) -> None:
        self._many = not isinstance(path, (str, os.PathLike))
        given = [path] if isinstance(path, (str, os.PathLike)) else path
        self._paths = [os.fspath(one) for one in given]
        # now, not when it is opened: a later chdir must not make it another file
        self._absolute = [os.path.abspath(one) for one in self._paths]
        self.member = member
        self.max_row_bytes = max_row_bytes
        kind = type(self).__name__
        if not self._paths:
            raise UsageError(f"{kind}: no path is given")
        twice = {one for one in self._absolute if self._absolute.count(one) > 1}
        if twice:
            raise UsageError(f"{kind}: a file is named more than once: {listed(sorted(twice))}")
        if max_row_bytes < 1:
            raise UsageError(f"{kind}: max_row_bytes must be at least 1, not {max_row_bytes}")

    @property
    def bounded(self) -> bool:
        """Whether the files have an end."""
        return True

    def partitions(self) -> list[Partition]:
        """One partition per file, in the order given. Nothing is opened yet."""
        return [
            FilePartition(path, absolute, self.member, self._make_format)
            for path, absolute in zip(self._paths, self._absolute, strict=True)
        ]

    @abstractmethod
    def _make_format(self, file: str, value_type: Any) -> RowFormat: ...

    def _describe(self, kind: str) -> dict[str, Any]:
        described: dict[str, Any] = {kind: self._paths if self._many else self._paths[0]}
        if self.member is not None:
            described["member"] = self.member
        return described


class JsonLines(Files):
    """A JSON value per line: ``JsonLines("lines.jsonl")``.

    Blank lines are skipped. Bad rows — no JSON, of another type, not UTF-8, too long — are
    handed to the injector's error policy.

    Args:
        path: a file, or a sequence of files; plain, gzip or zip, told by their first bytes.
        member: the member of a zip file that holds several.
        max_row_bytes: a longer line is a bad row.
    """

    def __init__(
        self,
        path: AnyPath | Sequence[AnyPath],
        *,
        member: str | None = None,
        max_row_bytes: int = MAX_ROW_BYTES,
    ) -> None:
        super().__init__(path, member, max_row_bytes)

    def _make_format(self, file: str, value_type: Any) -> RowFormat:
        return JsonLinesFormat(file, value_type, self.max_row_bytes)

    def describe(self) -> dict[str, Any]:
        """What is stored of it in the graph."""
        return self._describe("json_lines")


class Csv(Files):
    """A row per line, under a header row that names the fields: ``Csv("flights.csv")``.

    Cells are read as msgspec's lax mode reads strings: ``12``, ``0.5``, ``true``,
    ``2013-01-01T05:00:00Z``; ``+1``, ``007`` and `` 5`` are no numbers. Columns without a
    field are left out. A bad row — other cells than the header, a cell that does not fit its
    field, text behind a closing quote, not UTF-8, too long — is handed to the injector's
    error policy.

    A null cell becomes None where the field allows it; else stays the text it is in a str
    field; else means the field's default; else the row is bad.

    Args:
        path: a file, or a sequence of files; plain, gzip or zip, told by their first bytes.
        member: the member of a zip file that holds several.
        delimiter: one ASCII character between cells.
        quote: one ASCII character around cells that hold delimiters, newlines or (doubled)
            quotes; None if no character is special.
        null: the cells that mean "no value", such as ``("", "NA")``. In a field that is
            neither str nor bytes, msgspec takes the text ``null`` for None as well.
        optional: fields with a default that the header may lack. (A missing column is an
            error else: a misspelt field would silently be its default in every row.)
        max_row_bytes: a longer row is a bad row.
    """

    def __init__(
        self,
        path: AnyPath | Sequence[AnyPath],
        *,
        member: str | None = None,
        delimiter: str = ",",
        quote: str | None = '"',
        null: Sequence[str] = ("",),
        optional: Sequence[str] = (),
        max_row_bytes: int = MAX_ROW_BYTES,
    ) -> None:
        super().__init__(path, member, max_row_bytes)
        for what, character in (("delimiter", delimiter), ("quote", quote)):
            if character is not None and (
                len(character) != 1 or not character.isascii() or character in "\r\n\0"
            ):
                raise UsageError(f"Csv: the {what} must be one ASCII character, not {character!r}")
        if delimiter == quote:
            raise UsageError(f"Csv: delimiter and quote are both {quote!r}")
        for what, names in (("null", null), ("optional", optional)):
            if isinstance(names, str):
                raise UsageError(f"Csv: give {what} as a tuple of strings, not {names!r}")
        self.delimiter = delimiter
        self.quote = quote
        self.null = tuple(null)
        self.optional = tuple(optional)

    def _make_format(self, file: str, value_type: Any) -> RowFormat:
        dialect = Dialect(
            self.delimiter, self.quote, frozenset(self.null), frozenset(self.optional)
        )
        return CsvFormat(file, value_type, dialect, self.max_row_bytes)

    def describe(self) -> dict[str, Any]:
        """What is stored of it in the graph."""
        return {
            **self._describe("csv"),
            "delimiter": self.delimiter,
            "quote": self.quote,
            "null": list(self.null),
            "optional": list(self.optional),
        }
