"""Decodes the rows of a numbered table, JSON objects by column, to values of a stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import inspect

from millwheel.core.json_rows import BadRow, JsonRows, is_too_deep

_NAMED = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType)
_NOT_FINITE = {b'"NaN"': "NaN", b'"Infinity"': "infinity", b'"-Infinity"': "-infinity"}
"""Numbers that JSON lacks, in the texts that Postgres writes in their place."""


class RowDecoder:
    """Decodes rows to values of one type.

    A column belongs to the field of its name. In JSON the field may have another one (``rename=``,
    ``field(name=...)``), which may be the name of another column.

    Raises:
        TypeError, NotImplementedError, NameError: the values of the type cannot be JSON.
    """

    def __init__(self, value_type: Any) -> None:
        self._json = JsonRows(value_type)
        info = inspect.type_info(value_type)
        while isinstance(info, inspect.Metadata):
            info = info.type
        fields = info.fields if isinstance(info, _NAMED) else ()
        self._renamed = {f.name: f.encode_name for f in fields if f.name != f.encode_name}
        self._floats = {f.encode_name for f in fields if _is_float(f.type)}

    def named(self, row: str) -> str:
        """The row with the names of fields in JSON, as the stream stores its values."""
        renamed = self._renamed
        if not renamed or is_too_deep(row.encode()):
            return row
        columns = _columns_of(row)
        values = {renamed[name]: raw for name, raw in columns.items() if name in renamed}
        for name, raw in columns.items():
            if name not in renamed:
                values.setdefault(name, raw)
        return msgspec.json.encode(values).decode()

    def decode(self, text: str) -> Any:
        """The value of a row that is `named`.

        Raises:
            BadRow: the row does not fit the type.
        """
        try:
            return self._json.one(text.encode())
        except BadRow as error:
            columns = {} if is_too_deep(text.encode()) else _columns_of(text)
            for name, raw in columns.items():
                number = _NOT_FINITE.get(bytes(raw)) if name in self._floats else None
                if number is not None:
                    raise BadRow(
                        f"{name} is {number}: a stream's values are stored as JSON, where a float "
                        "cannot be that. Declare the field as Decimal, which can, or leave such "
                        "rows out of the table"
                    ) from error
            raise


_columns_of: Callable[[str], dict[str, msgspec.Raw]] = msgspec.json.Decoder(
    dict[str, msgspec.Raw]
).decode


def _is_float(kind: inspect.Type) -> bool:
    """Whether a field takes floats, and texts only as such of Postgres."""
    members = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    has_text = any(isinstance(member, inspect.StrType) for member in members)
    return not has_text and any(isinstance(member, inspect.FloatType) for member in members)
