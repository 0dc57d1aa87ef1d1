"""Whether the columns of a DataFrame fit the records of a stream, by the type that it was deployed
with.

The store has that type as a JSON schema (`millwheel.core.codec.type_fingerprint`). Only types are
compared, not whether a column has a NULL, or a text that is no time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import types as spark

from millwheel.errors import UsageError

Schema = Mapping[str, Any]

ACCEPTED = {"number": {"number", "integer"}, "integer": {"number", "integer"}}
"""Kinds of values that fit a kind of JSON in a schema; otherwise only the same one."""
KINDS: Sequence[tuple[type[spark.DataType], str, str]] = (
    (spark.BooleanType, "boolean", ""),
    (spark.IntegralType, "integer", ""),
    (spark.FractionalType, "number", ""),
    (spark.ArrayType, "array", ""),
    (spark.StructType, "object", ""),
    (spark.MapType, "object", ""),
    (spark.DateType, "string", "date"),
    (spark.TimestampType, "string", "date-time"),
    (spark.TimestampNTZType, "string", "date-time"),
    (spark.TimeType, "string", "time"),
    (spark.DayTimeIntervalType, "string", "duration"),
)
"""Kind and format of the JSON of a type of Spark; a text and bytes are strings of any format."""


def check_fit(fields: Sequence[spark.StructField], fingerprint: Schema, stream: str) -> None:
    """`UsageError` for columns that are no records of a stream, with the column and the stream's
    type there."""
    fit = _Fit(fingerprint.get("parts", {}))
    wrong = fit.wrong("", spark.StructType(list(fields)), fingerprint["type"])
    if wrong is not None:
        raise UsageError(f"the rows do not fit stream {stream!r}: {wrong}. Nothing was sent")


class _Fit:
    def __init__(self, parts: Mapping[str, Schema]) -> None:
        self._parts = parts

    def wrong(self, path: str, of: spark.DataType, schema: Schema) -> str | None:
        """The first part that does not fit; None: all of it may."""
        if "$ref" in schema:
            return self.wrong(path, of, self._parts[schema["$ref"]])
        if "anyOf" in schema:
            choices = [c for c in schema["anyOf"] if c.get("type") != "null"]
            found = [self.wrong(path, of, choice) for choice in choices]
            return found[0] if found and None not in found else None
        if isinstance(of, spark.NullType) or not self._fits(of, schema):
            return None if isinstance(of, spark.NullType) else _said(path, of, schema)
        match of:
            case spark.StructType():
                return self._wrong_struct(path, of, schema)
            case spark.MapType() if isinstance(schema.get("additionalProperties"), Mapping):
                return self.wrong(path, of.valueType, schema["additionalProperties"])
            case spark.ArrayType() if isinstance(schema.get("items"), Mapping):
                return self.wrong(path, of.elementType, schema["items"])
        return None

    def _fits(self, of: spark.DataType, schema: Schema) -> bool:
        kind, form = next(((k, f) for t, k, f in KINDS if isinstance(of, t)), ("string", ""))
        if "enum" in schema:
            wanted = {_kind_of(value) for value in schema["enum"]}
        elif "type" in schema:
            wanted = {schema["type"]}
        else:
            return True
        if schema.get("format") == "decimal" and kind in ("integer", "number"):
            return True
        if not any(kind in ACCEPTED.get(each, {each}) for each in wanted):
            return False
        return not form or schema.get("format", form) == form

    def _wrong_struct(self, path: str, of: spark.StructType, schema: Schema) -> str | None:
        properties = schema.get("properties", {})
        others = schema.get("additionalProperties", True)
        for field in of.fields:
            here = f"{path}.{field.name}" if path else field.name
            if field.name not in properties and others is False:
                return f"it has no field {here!r}; it has {', '.join(properties)}"
            expected = properties.get(field.name, others)
            if isinstance(expected, Mapping) and (
                wrong := self.wrong(here, field.dataType, expected)
            ):
                return wrong
        if missing := [n for n in schema.get("required", ()) if n not in of.fieldNames()]:
            place = f" in {path!r}" if path else ""
            return (
                f"there is no column {', '.join(missing)}{place}, which a record must have; there "
                f"are {', '.join(of.fieldNames())}"
            )
        return None


def _kind_of(value: Any) -> str:
    match value:
        case bool():
            return "boolean"
        case int():
            return "integer"
        case str():
            return "string"
    return "null"


def _said(path: str, of: spark.DataType, schema: Schema) -> str:
    expected = schema.get("format") or schema.get("type") or f"one of {schema.get('enum')}"
    problem = f"column {path!r} is {of.simpleString()}" if path else "a row is an object"
    return f"{problem}, and the stream has {expected} there"
