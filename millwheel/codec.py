"""Keys, values and state to bytes and back.

Everything durable is JSON, so that SQL can read it; nothing is ever pickled. A key's
canonical bytes are its compact JSON (``"1"`` and ``1`` differ), and its slot is the top
16 bits of their xxh3-64: stable over processes, machines and releases.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec
import xxhash

from millwheel.errors import GraphError, UserCodeError
from millwheel.model import Key

T = TypeVar("T")

_encode_json = msgspec.json.Encoder().encode
_hash = xxhash.xxh3_64_intdigest
_NUL = b"\\u0000"


def encode_key(key: Key) -> tuple[bytes, int]:
    """A key's canonical bytes and its slot.

    Raises:
        UserCodeError: the key is not a str, an int or a tuple of these.
    """
    if type(key) is int:
        encoded = b"%d" % key
        return encoded, _hash(encoded) >> 48
    kind = type(key)
    if kind is not str and not _is_key_tuple(key):
        raise UserCodeError(
            f"{key!r} cannot be a key: a key is a str, an int or a tuple of these "
            f"(not {kind.__name__}); floats and naive times do not compare safely"
        )
    try:
        encoded = _encode_json(key)
    except (UnicodeEncodeError, OverflowError, msgspec.MsgspecError) as error:
        raise UserCodeError(f"{key!r} cannot be a key: {error}") from error
    if _NUL in encoded and b"\x00" in _strings_of(encoded):
        raise UserCodeError(f"{key!r} cannot be a key: Postgres does not store NUL characters")
    return encoded, _hash(encoded) >> 48


def _is_key_tuple(key: object) -> bool:
    return type(key) is tuple and bool(key) and all(type(p) is str or type(p) is int for p in key)


def slot_of(key_text: bytes) -> int:
    """The slot of a key's canonical bytes."""
    return _hash(key_text) >> 48


def decode_key(encoded: bytes) -> Key:
    """The key that `encode_key` made `encoded` from."""
    key = msgspec.json.decode(encoded)
    return cast(Key, tuple(key) if isinstance(key, list) else key)


def named_id(scope: str, name: str) -> bytes:
    """The 16-byte id of a record with a user-supplied id `name`, within `scope`."""
    return hashlib.blake2b(f"{scope}\0{name}".encode(), digest_size=16).digest()


def _may_hold_float(hint: Any) -> bool:
    """Whether values of this type may hold a float anywhere (JSON has no NaN or infinity)."""
    seen: set[Any] = set()

    def look(part: Any) -> bool:
        if part in (float, Any, object) or isinstance(part, TypeVar):
            return True
        try:
            if part in seen:
                return False
            seen.add(part)
        except TypeError:
            return True
        if any(look(argument) for argument in get_args(part)):
            return True
        origin = get_origin(part) or part
        if isinstance(origin, type) and (
            issubclass(origin, msgspec.Struct) or dataclasses.is_dataclass(origin)
        ):
            return any(look(field) for field in get_type_hints(origin).values())
        return origin in (dict, list, tuple, set, frozenset) and not get_args(part)

    return look(hint)


class Codec(Generic[T]):
    """Values of one type to JSON and back, with the checks that make it safe to store."""

    def __init__(self, value_type: Any, *, what: str, limit: int = 8 << 20) -> None:
        """
        Args:
            value_type: any type msgspec can decode JSON to.
            what: how to call the value in errors, e.g. ``stream 'words'``.
            limit: encoded bytes allowed.
        """
        self.value_type = value_type
        self.what = what
        self.limit = limit
        try:
            self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(value_type)
            self.decode: Callable[[bytes], T] = self._decoder.decode
            self.fingerprint = type_fingerprint(value_type)
        except (TypeError, NotImplementedError, NameError) as error:
            raise GraphError(
                f"{what}: values of type {value_type!r} cannot be stored as JSON: {error}. "
                "Use a msgspec.Struct, a dataclass, or plain Python types"
            ) from error
        self._floats = _may_hold_float(value_type)

    def encode(self, value: T) -> bytes:
        """JSON bytes of `value`.

        Raises:
            UserCodeError: it is no value of this type, too large, or holds NaN or NUL.
        """
        try:
            encoded = _encode_json(value)
        except (TypeError, OverflowError, UnicodeEncodeError, msgspec.MsgspecError) as error:
            raise UserCodeError(
                f"{self.what}: {value!r:.200} cannot be encoded: {error}"
            ) from error
        if len(encoded) > self.limit:
            raise UserCodeError(
                f"{self.what}: the value takes {len(encoded):,} bytes, more than the limit of "
                f"{self.limit:,}; split it, or raise the limit in Settings"
            )
        if _NUL in encoded and b"\x00" in _strings_of(encoded):
            raise UserCodeError(
                f"{self.what}: Postgres does not store NUL characters: {value!r:.200}"
            )
        if self._floats and b"null" in encoded:
            self.check(encoded, value)
        return encoded

    def check(self, encoded: bytes, value: T) -> T:
        """Decode what was just encoded, blaming `value` when that fails."""
        try:
            return self.decode(encoded)
        except msgspec.MsgspecError as error:
            raise UserCodeError(
                f"{self.what}: {value!r:.200} is not a value of type "
                f"{getattr(self.value_type, '__name__', self.value_type)}: {error}"
            ) from error


def _strings_of(encoded: bytes) -> bytes:
    """All decoded strings of a JSON text, to tell a NUL from an escaped backslash."""
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
    """The structure of a type as a JSON schema: equal fingerprints decode each other's data."""
    (schema,), components = msgspec.json.schema_components([value_type], ref_template="{name}")
    found: dict[str, Any] = _without_prose({"type": schema, "parts": components})
    return found


def _without_prose(schema: Any) -> Any:
    """A schema without what does not change its data: titles, descriptions, defaults."""
    if isinstance(schema, Mapping):
        return {
            name: _without_prose(part)
            for name, part in sorted(schema.items())
            if not (name in ("title", "description") and isinstance(part, str))
        }
    if isinstance(schema, (list, tuple)):
        return [_without_prose(part) for part in schema]
    return schema


def apply_migrations(
    encoded: bytes,
    stored: int,
    current: int,
    migrations: Mapping[int, Callable[[Any], Any]],
    what: str,
) -> bytes:
    """Bring JSON written by version `stored` up to `current`, one step at a time.

    Raises:
        UserCodeError: a step is missing, or the data is newer than this code.
    """
    if stored > current:
        raise UserCodeError(
            f"{what}: stored by version {stored}, but this code is version {current}; "
            "deploy the newer code again"
        )
    value = msgspec.json.decode(encoded)
    for version in range(stored, current):
        upgrade = migrations.get(version)
        if upgrade is None:
            raise UserCodeError(f"{what}: no migration from version {version} to {version + 1}")
        value = upgrade(value)
    return _encode_json(value)
