"""CSV: a header row, then rows with cells that become the fields of a type."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from operator import itemgetter
from types import GenericAlias
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from millwheel.core.json_rows import BadRow
from millwheel.errors import InputError, UsageError
from millwheel.files.file_rows import (
    CLOSING,
    PLAIN,
    QUOTED,
    START,
    RowFormat,
    listed,
    split_lines,
)
from millwheel.sources import Row

_NUMBER = re.compile(r"^-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?$", re.MULTILINE)
"""A cell that lax conversion takes for seconds since 1970: 20240101 would be a day of August
1970."""

_NullMeaning: TypeAlias = Literal["none", "default", "text"]
"""The meaning of a null cell: None, the field's default, or the cell's text."""


@dataclass(frozen=True)
class Dialect:
    delimiter: str
    quote: str | None
    null: frozenset[str]
    optional: frozenset[str]


@dataclass(frozen=True)
class _Field:
    name: str
    has_default: bool
    if_null: _NullMeaning
    is_time: bool
    """Whether it takes times or durations, and no numbers."""


class _Fields(NamedTuple):
    fields: tuple[_Field, ...] | None
    """None: the type takes any columns, with null cells as in `other`."""
    other: _NullMeaning
    others_are_times: bool
    tag: str | None
    closed: bool


def _fields_of(value_type: Any) -> _Fields:
    """The fields that a CSV row of `value_type` fills.

    Raises:
        UsageError: the type has no named fields.
    """
    found = msgspec.inspect.type_info(value_type)
    while isinstance(found, msgspec.inspect.Metadata):
        found = found.type
    if isinstance(found, msgspec.inspect.AnyType):
        return _Fields(None, "none", False, None, False)
    if isinstance(found, msgspec.inspect.DictType):
        kind = found.value_type
        return _Fields(None, _if_null(kind, True), _is_time(kind), None, False)
    struct = msgspec.inspect.StructType
    if isinstance(
        found, (struct, msgspec.inspect.DataclassType, msgspec.inspect.TypedDictType)
    ) and not (isinstance(found, struct) and found.array_like):
        is_struct = isinstance(found, struct)
        return _Fields(
            tuple(
                _Field(
                    field.encode_name,
                    not field.required,
                    _if_null(field.type, field.required),
                    _is_time(field.type),
                )
                for field in found.fields
            ),
            "text",
            False,
            found.tag_field if is_struct else None,  # type: ignore[union-attr]
            found.forbid_unknown_fields if is_struct else False,  # type: ignore[union-attr]
        )
    raise UsageError(
        f"a CSV row cannot become a {value_type!r}: use a type with named fields "
        "(a msgspec.Struct, a dataclass, a TypedDict), or a dict"
    )


def _members(found: msgspec.inspect.Type) -> list[msgspec.inspect.Type]:
    kinds: list[msgspec.inspect.Type] = []
    rest = [found]
    while rest:
        kind = rest.pop()
        if isinstance(kind, msgspec.inspect.Metadata):
            rest.append(kind.type)
        elif isinstance(kind, msgspec.inspect.UnionType):
            rest.extend(kind.types)
        else:
            kinds.append(kind)
    return kinds


def _is_time(found: msgspec.inspect.Type) -> bool:
    of = msgspec.inspect
    kinds = [kind for kind in _members(found) if not isinstance(kind, of.NoneType)]
    return bool(kinds) and all(isinstance(k, (of.DateTimeType, of.TimeDeltaType)) for k in kinds)


def _if_null(found: msgspec.inspect.Type, required: bool) -> _NullMeaning:
    kinds = _members(found)
    if any(isinstance(k, (msgspec.inspect.NoneType, msgspec.inspect.AnyType)) for k in kinds):
        return "none"
    if required or any(isinstance(k, msgspec.inspect.StrType) for k in kinds):
        return "text"
    return "default"


class CsvFormat(RowFormat):
    has_header = True

    def __init__(self, file: str, value_type: Any, dialect: Dialect, max_row_bytes: int) -> None:
        super().__init__(file, max_row_bytes)
        self.name = f"csv {dialect.delimiter}{dialect.quote or ''}"
        self._type = value_type
        self._types = GenericAlias(list, (value_type,))
        self._optional = dialect.optional
        self._null = dialect.null
        self._delimiter = dialect.delimiter
        self._quote = dialect.quote
        self._quoted = (dialect.quote or "").encode()
        self._separator = re.compile(b"[%b\n]" % re.escape(dialect.delimiter.encode()))
        if dialect.quote is not None:
            delimiter, quote = re.escape(dialect.delimiter), re.escape(dialect.quote)
            # No possessive groups: Python before 3.11.5 gets them wrong. None is needed, because
            # each quote closes or is the first of a pair, independent of the text before it.
            quoted = f"{quote}[^{quote}]*+(?:{quote}{quote}[^{quote}]*+)*{quote}(?!{quote})"
            cell = f"(?:{quoted}|(?!{quote}))[^{delimiter}\n]*+"
            row = f"{cell}(?:{delimiter}{cell})*"
            self._match_row = re.compile(f"{row}\n".encode()).match
            self._match_all = re.compile(row.encode()).fullmatch
            self._match_quoted = re.compile(quoted).match
        self._columns: tuple[str, ...] = ()
        self._names: tuple[str, ...] = ()
        self._if_null: tuple[_NullMeaning, ...] = ()
        self._times: tuple[str, ...] = ()
        self._pick: Callable[[Sequence[str]], Sequence[str]] = tuple
        self._wanted = _fields_of(value_type)

    def read_header(self, raw: bytes, line: int) -> None:
        try:
            self.check(raw)
            columns = self._cells(raw)
        except (BadRow, UnicodeDecodeError) as error:
            reason = self.explain(raw, error)
            raise InputError(f"{self.file}, line {line}: the header: {reason}") from error
        self._columns = tuple(columns)
        self._choose_columns(self._wanted)

    def _choose_columns(self, wanted: _Fields) -> None:
        columns, name = self._columns, self.file
        type_name = getattr(self._type, "__name__", str(self._type))
        # Spreadsheets leave columns without a name at the end; no field can have that name.
        counted = [c for c in columns if c or wanted.fields is None]
        twice = sorted({c for c in counted if counted.count(c) > 1})
        if twice:
            raise InputError(f"{name}: more than one column has the name {listed(twice)}")
        if wanted.fields is None:
            self._names = columns
            self._if_null = (wanted.other,) * len(columns)
            self._times = columns if wanted.others_are_times else ()
            return
        known = {field.name for field in wanted.fields}
        missing = [
            field.name
            for field in wanted.fields
            if field.name not in columns
            and not (field.has_default and field.name in self._optional)
        ]
        if missing:
            raise InputError(
                f"{name}: the header has no column {listed(missing)}, which {type_name} requires; "
                f"it has {listed(columns)}. Rename the field or the column or, for a field with "
                "a default, list it in optional=(...)"
            )
        extra = [column for column in columns if column not in known and column != wanted.tag]
        if wanted.closed and extra:
            raise InputError(
                f"{name}: the column {listed(extra)} is not a field of {type_name}, which forbids "
                f"unknown fields; it has {listed(known)}"
            )
        if_null = {field.name: field.if_null for field in wanted.fields}
        self._names = tuple(c for c in columns if c in known or c == wanted.tag)
        self._if_null = tuple(if_null.get(c, "text") for c in self._names)
        times = {field.name for field in wanted.fields if field.is_time}
        self._times = tuple(c for c in self._names if c in times)
        places = [columns.index(c) for c in self._names]
        if len(places) == len(columns):
            self._pick = tuple
        elif len(places) > 1:
            self._pick = itemgetter(*places)
        else:
            self._pick = lambda cells: [cells[place] for place in places]

    def split(self, buffer: bytes, start: int) -> list[bytes]:
        if not self._quoted or buffer.find(self._quoted, start) < 0:
            return split_lines(buffer, start)
        raws = []
        match = self._match_row
        while (found := match(buffer, start)) is not None:
            end = found.end()
            raws.append(buffer[start : end - 1])
            start = end
        return raws

    def find_end(self, piece: bytes, state: int) -> tuple[int, int]:
        place = 0
        while place < len(piece):
            if state == QUOTED:
                place = piece.find(self._quoted, place) + 1
                if not place:
                    break
                state = CLOSING
            elif state != PLAIN and self._quoted and piece[place] == self._quoted[0]:
                state = QUOTED  # the quote opens the cell, or is the second of a pair
                place += 1
            else:
                found = self._separator.search(piece, place)
                if found is None:
                    return 0, PLAIN
                place, state = found.end(), START
                if found[0] == b"\n":
                    return place, state
        return 0, state

    def is_blank(self, raw: bytes) -> bool:
        return raw in (b"", b"\r")

    def is_whole(self, raw: bytes) -> bool:
        return not self._quoted or self._match_all(raw) is not None

    def decode(self, raws: list[bytes], rows: list[Row], number: int, line: int) -> int:
        offset = number
        values = self._decode_together(raws)
        if values is not None:
            if b"\n" in b"".join(raws):
                for value, raw in zip(values, raws, strict=True):
                    rows.append(Row(offset, line, value))
                    offset += 1
                    line += 1 + raw.count(b"\n")
                return line
            rows += map(Row, count(offset), count(line), values)
            return line + len(raws)
        for raw in raws:
            if not self.is_blank(raw):
                rows.append(self._decode_one(raw, offset, line))
                offset += 1
            line += 1 + raw.count(b"\n")
        return line

    def _decode_together(self, raws: list[bytes]) -> list[Any] | None:
        """Decode many rows at once; None if any row needs `_decode_one`, which gives the same
        values.

        It is three times as fast: most of the time of `msgspec.convert` and `csv.reader` is per
        call.
        """
        whole = b"\n".join(raws)
        if len(whole) > self.max_row_bytes or b"" in raws:
            return None
        if b"\r" in whole:
            if b"\r" in raws or whole.count(b"\r") != sum(raw.endswith(b"\r") for raw in raws):
                return None
            raws = [raw.removesuffix(b"\r") for raw in raws]
        try:
            texts = [raw.decode() for raw in raws]
            cells: Iterable[list[str]]
            if self._quoted and self._quoted in whole:
                cells = list(
                    csv.reader(texts, delimiter=self._delimiter, quotechar=self._quote, strict=True)
                )
            else:
                delimiter = self._delimiter
                cells = [text.split(delimiter) for text in texts]
            if len(cells) != len(raws) or set(map(len, cells)) != {len(self._columns)}:
                return None
            assigned = self._assign(cells)
            for column in self._times:
                times = [row.get(column) or "" for row in assigned]
                if _NUMBER.search("\n".join(times)):
                    return None
            values: list[Any] = msgspec.convert(assigned, self._types, strict=False)
        except Exception:  # a type's __post_init__ may raise anything
            return None
        return values

    def _assign(self, rows: Iterable[Sequence[str]]) -> list[dict[str, str | None]]:
        """Convert cells to named values, with null cells as None or left out."""
        names, pick, is_plain = self._names, self._pick, self._null.isdisjoint
        assigned: list[dict[str, str | None]] = []
        for cells in rows:
            picked = pick(cells)
            values: dict[str, str | None] = dict(zip(names, picked, strict=True))
            if not is_plain(picked):
                for name, cell, if_null in zip(names, picked, self._if_null, strict=True):
                    if cell in self._null:
                        if if_null == "none":
                            values[name] = None
                        elif if_null == "default":
                            del values[name]
            assigned.append(values)
        return assigned

    def _decode_one(self, raw: bytes, offset: int, line: int) -> Row:
        try:
            self.check(raw)
            cells = self._cells(raw)
            self._check_width(cells)
            (values,) = self._assign([cells])
            return Row(offset, line, self._convert(values))
        except Exception as error:  # a type's __post_init__ may raise anything
            return self.bad(offset, line, raw, self.explain(raw, error))

    def _check_width(self, cells: list[str]) -> None:
        if len(cells) != len(self._columns):
            raise BadRow(f"the row has {len(cells)} cells, the header {len(self._columns)}")

    def _convert(self, values: dict[str, str | None]) -> Any:
        for column in self._times:
            cell = values.get(column)
            if cell is not None and _NUMBER.fullmatch(cell):
                raise BadRow(
                    f"column {column!r} holds {cell!r}, a number, and not a time such as "
                    "2013-01-01T05:00:00Z or a duration such as PT90S; if it is in seconds, "
                    "declare the field as int or float and convert it"
                )
        try:
            return msgspec.convert(values, self._type, strict=False)
        except msgspec.ValidationError as error:
            found = re.fullmatch(r"(.*) - at `\$\.(.*)`", str(error), re.DOTALL)
            if found is None or found[2] not in values:
                raise
            cell = values[found[2]]
            raise BadRow(f"column {found[2]!r} holds {cell!r:.200}: {found[1]}") from error

    def _cells(self, raw: bytes) -> list[str]:
        """Split one row into cells, as `csv.reader` does in strict mode.

        The limit of `csv.reader`, 128 KiB per cell, can only be raised for the whole process.
        """
        text = raw.decode().removesuffix("\r")
        delimiter, quote = self._delimiter, self._quote
        cells: list[str] = []
        place = 0
        while True:
            if quote is not None and text.startswith(quote, place):
                found = self._match_quoted(text, place)
                assert found is not None, "rows are split only where quotes are closed"
                cells.append(found[0][1:-1].replace(quote * 2, quote))
                place = found.end()
                if place < len(text) and text[place] != delimiter:
                    raise BadRow(
                        f"cell {len(cells)} continues after its closing quote; "
                        "a quote within quotes must be doubled"
                    )
            else:
                end = text.find(delimiter, place)
                cells.append(text[place : end if end >= 0 else None])
                place = end if end >= 0 else len(text)
                if "\r" in cells[-1]:
                    raise BadRow(
                        f"there is a carriage return in cell {len(cells)}, which is not quoted; "
                        "lines must end in \\n or \\r\\n"
                    )
            if place == len(text):
                return cells
            place += 1
