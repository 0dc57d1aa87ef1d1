"""Bytes: their text, parts, encodings and digests."""

from __future__ import annotations

import binascii
import hashlib
import re
import zlib

from millwheel.sql.functions.registry import ValueRefused, casts, implements, inline, inline_cast

inline("({0} + {1})", "byteacat(bytea,bytea)")
inline("len({0})", "length(bytea)", "octet_length(bytea)", "byteaoctetlen(bytea)")
inline("(8 * len({0}))", "bit_length(bytea)")
inline("({0}.find({1}) + 1)", "position(bytea,bytea)", "byteapos(bytea,bytea)")
inline("{0}[::-1]", "reverse(bytea)")
inline("{0}.strip({1})", "btrim(bytea,bytea)")
inline("{0}.lstrip({1})", "ltrim(bytea,bytea)")
inline("{0}.rstrip({1})", "rtrim(bytea,bytea)")

_SPACE = re.compile(rb"[ \n\t\r]+")
_ESCAPED = re.compile(rb"\\(?:(\\)|([0-3][0-7]{2})|)")
_PAIR = re.compile(r"[0-9a-fA-F]{2}")


# -- text -----------------------------------------------------------------------------------------


@casts(("text", "bytea"))
def bytea(text: str) -> bytes:
    """Read bytes, as ``\\xabcd`` or with escapes."""
    return from_hex(text[2:]) if text.startswith("\\x") else from_escapes(text)


@casts(("bytea", "text"))
def shown(value: bytes) -> str:
    return "\\x" + value.hex()


def from_hex(text: str) -> bytes:
    """Two digits for each byte; space may be between the pairs."""
    try:
        return bytes.fromhex(text) if text.isascii() and text.isalnum() else _pairs(text)
    except ValueError:
        return _pairs(text)


def _pairs(text: str) -> bytes:
    found, at = bytearray(), 0
    while at < len(text):
        if text[at] in " \n\t\r":
            at += 1
            continue
        pair = text[at : at + 2]
        wrong = next((each for each in pair if each not in "0123456789abcdefABCDEF"), None)
        if wrong is not None:
            raise ValueRefused(f'invalid hexadecimal digit: "{wrong}"')
        if len(pair) == 1:
            raise ValueRefused("invalid hexadecimal data: odd number of digits")
        found.append(int(pair, 16))
        at += 2
    return bytes(found)


def from_escapes(text: str) -> bytes:
    """A backslash is doubled, or followed by three octal digits."""

    def byte(match: re.Match[bytes]) -> bytes:
        slash, digits = match.groups()
        if slash:
            return b"\\"
        if not digits:
            raise ValueRefused("invalid input syntax for type bytea")
        return bytes([int(digits, 8)])

    return _ESCAPED.sub(byte, text.encode())


# -- parts ----------------------------------------------------------------------------------------


@implements("substring(bytea,int4)", "substr(bytea,int4)")
def tail(value: bytes, start: int) -> bytes:
    return value[start - 1 :] if start > 0 else value


@implements("substring(bytea,int4,int4)", "substr(bytea,int4,int4)")
def substring(value: bytes, start: int, length: int) -> bytes:
    if length < 0:
        raise ValueRefused("negative substring length not allowed")
    return value[max(start - 1, 0) : max(start - 1 + length, 0)]


@implements("overlay(bytea,bytea,int4,int4)")
def overlay(value: bytes, new: bytes, start: int, length: int) -> bytes:
    if start <= 0:
        raise ValueRefused("negative substring length not allowed")
    if not -(2**31) <= start + length < 2**31:
        raise ValueRefused("integer out of range")
    return value[: start - 1] + new + tail(value, start + length)


@implements("overlay(bytea,bytea,int4)")
def overlay_all(value: bytes, new: bytes, start: int) -> bytes:
    return overlay(value, new, start, len(new))


@implements("get_byte(bytea,int4)")
def get_byte(value: bytes, index: int) -> int:
    return value[_index(index, len(value))]


@implements("set_byte(bytea,int4,int4)")
def set_byte(value: bytes, index: int, byte: int) -> bytes:
    changed = bytearray(value)
    changed[_index(index, len(value))] = byte & 0xFF
    return bytes(changed)


@implements("get_bit(bytea,int8)")
def get_bit(value: bytes, index: int) -> int:
    place = _index(index, 8 * len(value))
    return value[place // 8] >> place % 8 & 1


@implements("set_bit(bytea,int8,int4)")
def set_bit(value: bytes, index: int, bit: int) -> bytes:
    place = _index(index, 8 * len(value))
    if bit not in (0, 1):
        raise ValueRefused("new bit must be 0 or 1")
    changed = bytearray(value)
    changed[place // 8] = changed[place // 8] & ~(1 << place % 8) | bit << place % 8
    return bytes(changed)


def _index(index: int, length: int) -> int:
    if 0 <= index < length:
        return index
    raise ValueRefused(f"index {index} out of valid range, 0..{length - 1}")


@implements("bit_count(bytea)")
def bit_count(value: bytes) -> int:
    return int.from_bytes(value, "big").bit_count()


# -- encodings ------------------------------------------------------------------------------------

_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_LINE = 76


@implements("encode(bytea,text)")
def encode(value: bytes, kind: str) -> str:
    known = kind.lower()
    if known == "hex":
        return value.hex()
    if known == "base64":
        text = binascii.b2a_base64(value, newline=False).decode()
        return "\n".join(text[at : at + _LINE] for at in range(0, len(text), _LINE))
    if known == "escape":
        return "".join(map(_escape, value))
    raise ValueRefused(f'unrecognized encoding: "{kind}"')


def _escape(byte: int) -> str:
    if byte == 0 or byte >= 0x80:
        return f"\\{byte:03o}"
    return "\\\\" if byte == 0x5C else chr(byte)


@implements("decode(text,text)")
def decode(text: str, kind: str) -> bytes:
    known = kind.lower()
    if known == "hex":
        return from_hex(text)
    if known == "base64":
        return _from_base64(text)
    if known == "escape":
        return from_escapes(text)
    raise ValueRefused(f'unrecognized encoding: "{kind}"')


def _from_base64(text: str) -> bytes:
    digits = _SPACE.sub(b"", text.encode())
    body = digits.rstrip(b"=")
    missing = len(digits) - len(body)
    if b"=" in body:
        return _base64_with_ends(digits)
    if body.translate(None, _BASE64):
        raise ValueRefused("invalid symbol found while decoding base64 sequence")
    if missing and len(body) % 4 < 2:
        raise ValueRefused('unexpected "=" while decoding base64 sequence')
    if len(digits) % 4:
        raise ValueRefused("invalid base64 end sequence")
    return binascii.a2b_base64(digits)


def _base64_with_ends(digits: bytes) -> bytes:
    """Postgres reads on after the end, with as many bytes from each group as from the ended one."""
    found, group, kept = bytearray(), b"", 3
    for digit in digits:
        if digit == ord("="):
            if kept == 3 and len(group) < 2:
                raise ValueRefused('unexpected "=" while decoding base64 sequence')
            kept = len(group) - 1 if kept == 3 else kept
        elif digit not in _BASE64:
            raise ValueRefused("invalid symbol found while decoding base64 sequence")
        group += b"A" if digit == ord("=") else bytes([digit])
        if len(group) == 4:
            found += binascii.a2b_base64(group)[:kept]
            group = b""
    if group:
        raise ValueRefused("invalid base64 end sequence")
    return bytes(found)


# -- digests --------------------------------------------------------------------------------------


@implements("md5(text)")
def md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


@implements("md5(bytea)")
def md5_of_bytes(value: bytes) -> str:
    return hashlib.md5(value, usedforsecurity=False).hexdigest()


implements("sha224(bytea)")(lambda value: hashlib.sha224(value).digest())
implements("sha256(bytea)")(lambda value: hashlib.sha256(value).digest())
implements("sha384(bytea)")(lambda value: hashlib.sha384(value).digest())
implements("sha512(bytea)")(lambda value: hashlib.sha512(value).digest())
implements("crc32(bytea)")(lambda value: zlib.crc32(value))

for _kind, _size in {"int2": 2, "int4": 4, "int8": 8}.items():
    inline_cast(f'{{0}}.to_bytes({_size}, "big", signed=True)', (_kind, "bytea"))


def _integer(size: int, shown: str) -> object:
    def read(value: bytes) -> int:
        if len(value) > size:
            raise ValueRefused(f"{shown} out of range")
        return int.from_bytes(value.rjust(size, b"\0"), "big", signed=True)

    return read


for _kind, _size, _shown in (
    ("int2", 2, "smallint"),
    ("int4", 4, "integer"),
    ("int8", 8, "bigint"),
):
    casts(("bytea", _kind))(_integer(_size, _shown))  # type: ignore[type-var]
