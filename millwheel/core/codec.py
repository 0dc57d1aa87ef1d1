"""Converts keys, values and state to bytes and back.

Everything durable is JSON, so that SQL can read it; nothing is ever pickled. A key's canonical
bytes are its compact JSON (``"1"`` and ``1`` differ). Its slot is the top 16 bits of their xxh3-64,
stable across processes, machines and releases.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from inspect import iscoroutine, unwrap
from math import isfinite, nan
from types import UnionType
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)
from uuid import UUID

import msgspec
import xxhash
from msgspec import inspect

from millwheel.core.model import Key
from millwheel.core.stored_form import (
    MINUS_ZERO,
    Fidelity,
    are_in_order,
    fidelity,
    in_order,
    may_come_reordered,
    parts_of,
)
from millwheel.core.unstorable import type_text, unstorable_part
from millwheel.errors import GraphError, MigrationFailed, UserCodeError

T = TypeVar("T")

Migration: TypeAlias = (
    "Callable[[dict[str, Any]], Any] | Callable[[list[Any]], Any] | Callable[[str], Any] | "
    "Callable[[int], Any] | Callable[[float], Any] | Callable[[bool], Any] | Callable[[None], Any]"
)
"""Maps the JSON of one version of a type to that of the next: the argument is plain JSON, not an
object of the old type, which this code no longer has."""

MAX_KEY_BYTES = 1304
"""A key and the longest map entry (the field's name, a slash and another key) fit into an index
row, which Postgres limits to 2,704 bytes."""

KEY_CHARACTERS = 80
"""Longest key in messages."""

LETTER_CHARACTERS = 20_000
"""Longest text in a dead letter that has no limit of its own."""

FEW_FLOATS = 3
"""Up to this number of float fields, each is checked by itself (70 ns). With more, the text is
searched for null (90 ns, plus 450 for each value that contains a None)."""

TYPES_KNOWN = 1_000
"""Types with cached facts: inspecting one takes 2 ms, and each start inspects them all."""

_encode_json = msgspec.json.Encoder().encode
_encode_in_order = msgspec.json.Encoder(order="deterministic").encode
_pack = msgspec.msgpack.Encoder().encode
_hash = xxhash.xxh3_64_intdigest
_BACKSLASH = ord("\\")
_PLAIN_KEYS = frozenset((str, int))
_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
"""A float in MessagePack with an exponent of all ones: NaN or an infinity."""

_REFUSALS = (
    TypeError,
    ValueError,  # lone surrogates, whole numbers of more than 4,300 digits
    OverflowError,
    RecursionError,
    AttributeError,  # a field that is not set
    msgspec.MsgspecError,
)


def encode_key(key: Key) -> tuple[bytes, int]:
    """A key's canonical bytes and slot; `UserCodeError` unless it is a str, an int or a tuple of
    these, and not too long."""
    encoded = key_text(key)
    return encoded, _hash(encoded) >> 48


def key_text(key: Key) -> bytes:
    kind = type(key)
    if kind is not str and kind is not int and not _is_key_tuple(key):
        raise UserCodeError(
            f"{shown(key, KEY_CHARACTERS)} cannot be a key: a key is a str, an int or a tuple of "
            f"these (not {kind.__name__}); floats and naive times do not compare safely"
        )
    try:
        encoded = _encode_json(key)
    except _REFUSALS as error:
        raise UserCodeError(f"{shown(key, KEY_CHARACTERS)} cannot be a key: {error}") from error
    if len(encoded) > MAX_KEY_BYTES:
        raise UserCodeError(
            f"{shown(key, KEY_CHARACTERS)} cannot be a key: it takes {len(encoded):,} bytes as "
            f"JSON, more than the {MAX_KEY_BYTES:,} that fit into an index; use a hash of it"
        )
    if _BACKSLASH in encoded and _holds_nul(encoded):
        raise UserCodeError(
            f"{shown(key, KEY_CHARACTERS)} cannot be a key: Postgres does not store NUL characters"
        )
    return encoded


def encode_keys(keys: Sequence[Key]) -> tuple[list[bytes], list[int]]:
    encoded = list(map(_encode_json, keys)) if _PLAIN_KEYS.issuperset(map(type, keys)) else []
    if not encoded or max(map(len, encoded)) > MAX_KEY_BYTES or b"\\" in b"".join(encoded):
        found = [encode_key(key) for key in keys]
        return [key_text for key_text, _ in found], [slot for _, slot in found]
    return encoded, [number >> 48 for number in map(_hash, encoded)]


def is_key(key: object) -> bool:
    return type(key) is str or type(key) is int or _is_key_tuple(key)


def _is_key_tuple(key: object) -> bool:
    return type(key) is tuple and bool(key) and all(type(p) is str or type(p) is int for p in key)


def slot_of(key_text: bytes) -> int:
    return _hash(key_text) >> 48


def decode_key(encoded: bytes) -> Key:
    return decode_keys([encoded])[0]


def decode_keys(encoded: Iterable[bytes]) -> list[Key]:
    keys: list[Any] = list(map(msgspec.json.decode, encoded))
    return [tuple(key) if type(key) is list else key for key in keys]


def named_ids(scope: str, names: Iterable[bytes]) -> list[bytes]:
    """Ids of 16 bytes for names, given as UTF-8, that are unique within the scope.

    The first bit is not set; ids of weak productions have it set.
    """
    prefix, digest_of = scope.encode() + b"\0", hashlib.blake2b
    digests = [digest_of(prefix + name, digest_size=16).digest() for name in names]
    return [d if d[0] < 0x80 else bytes((d[0] & 0x7F,)) + d[1:] for d in digests]


_FIXED = (
    str, int, float, bool, bytes, type(None), datetime, date, time, timedelta, Decimal, UUID, Enum,
)  # fmt: skip


def _is_fixed(hint: Any, inside: frozenset[Any] = frozenset()) -> bool:
    origin = get_origin(hint)
    if origin is Literal or isinstance(hint, TypeVar):
        return True
    if origin is Annotated:
        return _is_fixed(get_args(hint)[0], inside)
    kind = origin or hint
    if kind in inside:
        return True
    fields: list[Any] = [part for part in get_args(hint) if part is not Ellipsis]
    if isinstance(kind, type) and _is_frozen(kind):
        fields += field_hints(kind, include_extras=True).values()
    elif kind not in (Union, UnionType) and not (
        isinstance(kind, type)
        and issubclass(kind, (*_FIXED, *([tuple, frozenset] if fields else [])))
    ):
        return False
    return all(_is_fixed(part, inside | {kind}) for part in fields)


def field_hints(kind: Any, *, include_extras: bool = False) -> dict[str, Any]:
    """The fields of a struct or dataclass with their types, without class variables."""
    hints = get_type_hints(kind, include_extras=include_extras)
    if issubclass(kind, msgspec.Struct):
        return {name: hints[name] for name in kind.__struct_fields__}
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _is_frozen(kind: type) -> bool:
    if issubclass(kind, msgspec.Struct):
        return bool(kind.__struct_config__.frozen)
    parameters = getattr(kind, "__dataclass_params__", None)
    return parameters is not None and bool(parameters.frozen)


def _may_hold_float(info: inspect.Type) -> bool:
    of = (inspect.FloatType, inspect.AnyType, inspect.CustomType, inspect.RawType)
    return any(isinstance(part, of) for part in parts_of(info))


def _float_fields(info: inspect.Type) -> dict[str, bool] | None:
    """The fields with all floats of a type, each with whether it may be None.

    None if there are more than `FEW_FLOATS`, or if a field is not a plain optional number.
    """
    if not _may_hold_float(info):
        return {}
    if not isinstance(info, (inspect.StructType, inspect.DataclassType)):
        return None
    simple = (inspect.FloatType, inspect.IntType, inspect.NoneType)
    found: dict[str, bool] = {}
    for field in info.fields:
        kind = field.type.type if isinstance(field.type, inspect.Metadata) else field.type
        if _may_hold_float(kind):
            members = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
            if not all(isinstance(member, simple) for member in members):
                return None
            found[field.name] = any(isinstance(member, inspect.NoneType) for member in members)
    return found if len(found) <= FEW_FLOATS else None


_SCALARS: dict[type[inspect.Type], tuple[type, ...]] = {
    inspect.NoneType: (type(None),),
    inspect.BoolType: (bool,),
    inspect.IntType: (int,),
    inspect.FloatType: (float, int),
    inspect.StrType: (str,),
    inspect.BytesType: (bytes,),
    inspect.DateTimeType: (datetime,),
    inspect.DateType: (date,),
    inspect.TimeType: (time,),
    inspect.TimeDeltaType: (timedelta,),
    inspect.UUIDType: (UUID,),
    inspect.DecimalType: (Decimal,),
}


def _classes_of(info: inspect.Type) -> frozenset[type]:
    """Classes with direct instances that are values of the type.

    Empty if the class does not decide: lists, dicts, ``Annotated`` with constraints, `Any`. Fields
    of a struct are not checked: a type checker does that.
    """
    if isinstance(info, inspect.UnionType):
        parts = [_classes_of(part) for part in info.types]
        return frozenset().union(*parts) if all(parts) else frozenset()
    if isinstance(info, (inspect.StructType, inspect.DataclassType, inspect.EnumType)):
        return frozenset([get_origin(info.cls) or info.cls])
    limits = [getattr(info, name) for name in info.__struct_fields__]
    if any(limit is not None for limit in limits):
        return frozenset()
    return frozenset(_SCALARS.get(type(info), ()))


@dataclass(frozen=True, slots=True)
class Facts:
    decode: Callable[[bytes], Any]
    fingerprint: dict[str, Any]
    floats: dict[str, bool] | None
    mutable: bool
    classes: frozenset[type]
    reorders: bool
    fidelity: Fidelity
    sets: bool
    """The order of a set differs between processes."""


def facts_of(value_type: Any) -> Facts:
    """Facts of a type, cached; `TypeError`, `NotImplementedError` or `NameError` if the values
    cannot be JSON."""
    try:
        hash(value_type)
    except TypeError:  # an annotation may hold anything
        return _find_facts(value_type)
    return _known_facts(value_type, repr(value_type))


@lru_cache(maxsize=TYPES_KNOWN)
def _known_facts(value_type: Any, _: str) -> Facts:
    """The key includes the type's text: ``int | str`` equals ``str | int``, but has another
    fingerprint."""
    return _find_facts(value_type)


def _find_facts(value_type: Any) -> Facts:
    info = inspect.type_info(value_type)
    return Facts(
        msgspec.json.Decoder(value_type).decode,
        type_fingerprint(value_type),
        _float_fields(info),
        not _is_fixed(value_type),
        _classes_of(info),
        may_come_reordered(info),
        fidelity(info),
        any(isinstance(part, (inspect.SetType, inspect.FrozenSetType)) for part in parts_of(info)),
    )


def _is_storable(value_type: Any) -> bool:
    try:
        facts_of(value_type)
    except (TypeError, NotImplementedError, NameError):
        return False
    return True


class Codec(Generic[T]):
    def __init__(
        self, value_type: Any, *, what: str, limit: int = 8 << 20, setting: str = ""
    ) -> None:
        """`value_type` is any that msgspec can decode JSON to; errors name the value `what`,
        `limit` is in bytes, and that of a setting."""
        self.value_type = value_type
        self.what = what
        self.limit = limit
        self._setting = setting
        try:
            facts = facts_of(value_type)
        except (TypeError, NotImplementedError, NameError) as error:
            part = unstorable_part(value_type, _is_storable) or str(error).splitlines()[-1]
            raise GraphError(
                f"{what}: values of type {type_text(value_type)} cannot be stored as JSON: {part}. "
                "Use a msgspec.Struct, a dataclass, or plain Python types"
            ) from error
        self.decode: Callable[[bytes], T] = facts.decode
        self.fingerprint = facts.fingerprint
        self._encode_plain = _encode_sets if facts.sets else _encode_json
        fields = facts.floats
        self._floats = [name for name, optional in (fields or {}).items() if not optional]
        self._optional_floats = [name for name, optional in (fields or {}).items() if optional]
        self.encode: Callable[[T], bytes] = self._encode
        """`UserCodeError` if the value cannot be JSON, is too large, or contains NUL, NaN or
        infinity."""
        if fields is None:
            self.encode = self._encode_floats_anywhere
        elif fields:
            self.encode = self._encode_few_floats
        self.holds_floats = fields is None or bool(fields)
        self.encode_unchecked = self.encode if self.holds_floats else self._encode_plain
        """The value must pass `check_texts` later; any error means that `encode` refuses it."""
        self.mutable = facts.mutable
        """User code can change a value in place; if so, it gets its own copy."""
        self.reorders = facts.reorders
        self.fidelity = facts.fidelity
        self.classes = facts.classes

    def check_class(self, value: T) -> None:
        """Refuse a value of another class, if the type has classes.

        An instance of a subclass passes, although its stored form may not be a value of the type.
        """
        if self.classes and not isinstance(value, tuple(self.classes)):
            raise UserCodeError(
                f"{self.what} takes values of type {self._type_name}, not "
                f"{type(value).__name__}: {shown(value)}{_ask_for_await(value)}"
            )

    @property
    def _type_name(self) -> str:
        return str(getattr(self.value_type, "__name__", self.value_type))

    def check_finite(self, value: T) -> None:
        """Refuse NaN and infinity in a value that will be encoded, and so checked, later."""
        if self.holds_floats:
            self.encode(value)

    def _encode(self, value: T) -> bytes:
        try:
            encoded = self._encode_plain(value)
        except _REFUSALS as error:
            raise UserCodeError(
                f"{self.what}: {shown(value)} cannot be encoded: {error}{_ask_for_await(error)}"
            ) from error
        if len(encoded) > self.limit or _BACKSLASH in encoded:
            self._check_text(encoded, value)
        return encoded

    def _encode_floats_anywhere(self, value: T) -> bytes:
        encoded = self._encode(value)
        if encoded.find(b"null") >= 0:
            self._check_floats(encoded, value)
        return encoded

    def _encode_few_floats(self, value: T) -> bytes:
        encoded = self._encode(value)
        try:
            for name in self._floats:
                if not isfinite(getattr(value, name, nan)):
                    self._check_floats(encoded, value)
            for name in self._optional_floats:
                number = getattr(value, name, nan)
                if number is not None and not isfinite(number):
                    self._check_floats(encoded, value)
        except (TypeError, OverflowError):  # not a number, or too large for a float
            self._check_floats(encoded, value)
        return encoded

    def _check_text(self, encoded: bytes, value: T) -> None:
        if len(encoded) > self.limit:
            raise UserCodeError(
                f"{self.what}: the value takes {len(encoded):,} bytes, more than the limit of "
                f"{self.limit:,}; split it"
                + (f", or raise the limit, Settings.{self._setting}" if self._setting else "")
            )
        if _holds_nul(encoded):
            raise UserCodeError(
                f"{self.what}: Postgres does not store NUL characters: {shown(value)}"
            )

    def _check_floats(self, encoded: bytes, value: T) -> None:
        """Refuse NaN and infinity, which msgspec encodes as null, and None in a field without
        it."""
        found = _find_not_finite(value)
        if found is not None:
            raise UserCodeError(
                f"{self.what}: JSON cannot hold {found} in {shown(value)}; use None where a number "
                "is not known"
            )
        self.check(encoded, value)

    def check(self, encoded: bytes, value: T) -> T:
        """Decode the bytes just encoded, and blame `value` if that fails."""
        decode = self.decode
        try:
            return decode(encoded)
        except msgspec.MsgspecError as error:
            raise UserCodeError(
                f"{self.what}: {shown(value)} is not a value of type {self._type_name}: {error}"
            ) from error

    def settle(self, encoded: bytes, value: T) -> tuple[bytes, T]:
        """The stored form, and the value that a restart reads from it; errors as `check`."""
        if self.are_settled([encoded], [value]):
            return encoded, self.check(encoded, value)
        found = self.check(in_order(encoded), value)
        return self.encode(found), found

    def is_kept(self, encoded: bytes) -> bool:
        """Whether user code surely sees the value that is read from this text as it was."""
        if self.fidelity == Fidelity.BUT_MINUS_ZERO:
            return MINUS_ZERO not in encoded
        return self.fidelity == Fidelity.FULL

    def read(self, stored: bytes) -> T:
        return self.decode(in_order(stored) if self.reorders else stored)

    def are_settled(self, encoded: Sequence[bytes], values: Sequence[T]) -> bool:
        """Whether the store returns these texts as they are, apart from spaces."""
        if self.reorders:
            return are_in_order(encoded, values)
        return not (self.holds_floats and MINUS_ZERO in b" ".join(encoded))

    def encode_all(self, values: Sequence[T]) -> list[bytes]:
        if self.holds_floats:
            return list(map(self.encode, values))
        try:
            encoded = list(map(self._encode_plain, values))
        except _REFUSALS:
            return list(map(self.encode, values))  # raises
        self.check_texts(encoded, values)
        return encoded

    def check_texts(self, encoded: Sequence[bytes], values: Sequence[T]) -> None:
        """Check size and NUL, which `encode_unchecked` does not."""
        if encoded and (max(map(len, encoded)) > self.limit or b"\\" in b"".join(encoded)):
            for text, value in zip(encoded, values, strict=True):
                self._check_text(text, value)

    def copies(self, encoded: Sequence[bytes]) -> list[T]:
        return list(map(self.decode, encoded))

    def check_all(self, encoded: Sequence[bytes], values: Sequence[T]) -> list[T]:
        try:
            return list(map(self.decode, encoded))
        except msgspec.MsgspecError:
            return [self.check(text, value) for text, value in zip(encoded, values, strict=True)]


def _encode_sets(value: Any) -> bytes:
    """Two processes iterate equal sets in different orders.

    Texts are compared for values sent twice under one id, and for weak productions.
    """
    try:
        return _encode_in_order(value)
    except TypeError:  # a dict with keys that are no str, which has no order to the encoder
        return _encode_json(msgspec.to_builtins(value, str_keys=True, order="deterministic"))


def _ask_for_await(found: Any) -> str:
    """A question for an error message if user code has used a coroutine as a value; otherwise
    empty.

    `found` is the value, or the error that it caused.
    """
    if iscoroutine(found):
        found.close()  # without this, Python also warns that it was never awaited
        return f'. Did you forget "await" before {found.__qualname__}(...)?'
    confused = isinstance(found, (TypeError, AttributeError)) and "coroutine" in str(found)
    return '. Did you forget "await"?' if confused else ""


def place_of(function: Callable[..., Any]) -> str:
    """The name of a function, with file and line if it has them and is not the engine's own."""
    name = getattr(function, "__name__", type(function).__name__)
    is_own = str(getattr(function, "__module__", "")).startswith("millwheel.")
    code = None if is_own else getattr(unwrap(function), "__code__", None)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code is not None else str(name)


def shown(value: Any, limit: int = 200) -> str:
    try:
        text = repr(value)
        return text if len(text) <= limit else text[: limit - 1] + "…"
    except Exception:
        # Whole numbers of more than 4,300 digits have no text, and a user's __repr__ may fail.
        return f"a {type(value).__name__} without a repr"


def reason(error: BaseException) -> str:
    """The text of a user's exception may itself raise."""
    try:
        return f"{type(error).__name__}: {error}{_ask_for_await(error)}"
    except Exception as second:
        return (
            f"{type(error).__name__}: without a text, since str() fails with "
            f"{type(second).__name__}"
        )


def storable(text: str) -> str:
    """Escapes all characters that Postgres cannot store."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def _holds_nul(encoded: bytes) -> bool:
    """Whether a JSON text has a NUL, not just an escaped backslash before ``u0000``."""
    return b"\\u0000" in encoded and b"\x00" in _strings_of(encoded)


def _find_not_finite(value: Any) -> str | None:
    """The first NaN or infinity, with its place in the value."""
    try:
        if _NOT_FINITE.search(_pack(value)) is None:
            return None
    except _REFUSALS:
        pass  # MessagePack has no integers of more than 64 bits
    todo: list[tuple[str, Any]] = [("", msgspec.to_builtins(value))]
    while todo:
        place, part = todo.pop()
        if isinstance(part, float) and not isfinite(part):
            return f"{part} (at {place})" if place else str(part)
        if isinstance(part, dict):
            todo += [(f"{place}.{name}", item) for name, item in part.items()]
        elif isinstance(part, (list, tuple, set, frozenset)):
            todo += [(f"{place}[{number}]", item) for number, item in enumerate(part)]
    return None


def _strings_of(encoded: bytes) -> bytes:
    found: list[str] = []

    def walk(value: Any) -> None:
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, list):
            for item in value:
                walk(item)
        elif isinstance(value, dict):
            for name, item in value.items():
                found.append(name)
                walk(item)

    walk(msgspec.json.decode(encoded))
    return "".join(found).encode()


def type_fingerprint(value_type: Any) -> dict[str, Any]:
    """Types with equal fingerprints share their data."""
    (schema,), components = msgspec.json.schema_components([value_type], ref_template="{name}")
    found: dict[str, Any] = _without_prose({"type": schema, "parts": components})
    return found


def _without_prose(schema: Any) -> Any:
    if isinstance(schema, Mapping):
        return {
            name: _without_prose(part)
            for name, part in sorted(schema.items())
            if not (name in ("title", "description") and isinstance(part, str))
        }
    if isinstance(schema, (list, tuple)):
        return [_without_prose(part) for part in schema]
    return schema


def leads(migrations: Container[int], stored: int, current: int) -> bool:
    step = 1 if stored < current else -1
    return all(version in migrations for version in range(stored, current, step))


def apply_migrations(
    encoded: bytes,
    stored: int,
    current: int,
    migrations: Mapping[int, Migration],
    what: str,
    decode: Callable[[bytes], Any],
) -> bytes:
    """Bring JSON from version `stored` to `current`, one step at a time, up or down.

    `decode` refuses JSON that is not a value of the current type. `MigrationFailed` if a step is
    missing or fails, or its result is not a value of the type.
    """
    step = 1 if stored < current else -1
    value = msgspec.json.decode(encoded)
    for version in range(stored, current, step):
        way = f"version {version} to {version + step}"
        if version not in migrations:
            raise MigrationFailed(f"{what}: no migration from {way}")
        before = value
        try:
            value = cast("Callable[[Any], Any]", migrations[version])(value)
        except BaseException as error:  # sys.exit too: the record is not at fault
            raise MigrationFailed(
                f"{what}: the migration from {way} failed on {shown(before)}: {reason(error)}\n"
                f"{_ADVICE}"
            ) from error
    try:
        migrated = _encode_json(value)
        decode(migrated)
    except _REFUSALS as error:
        raise MigrationFailed(
            f"{what}: the migration from version {stored} to {current} turned "
            f"{encoded.decode()[:200]} into {shown(value)}, which is not a value of the type: "
            f"{reason(error)}\n{_ADVICE}"
        ) from error
    return migrated


_ADVICE = (
    "A migration receives decoded JSON (a dict, list, str, number, bool or None, not a value of "
    "the old type) and returns the JSON form of the new type. Correct it and start again. Nothing "
    "is lost: the records that need the value are not acknowledged, and wait"
)
