"""Rows of JSON: decoded to values of a stream's type, or refused with a reason.

All sources of JSON and the HTTP endpoint judge rows here, so that an injector can read each
accepted record.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import msgspec

from millwheel.core.codec import reason

MOST_DEPTH = 500
"""Maximum levels of nesting. The decoder has the room that its caller leaves of the interpreter's
1,000 frames, so a row near that limit can be decoded in one place and not in another."""

_NUL = b"\\u0000"
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*(?:"|\\?\Z)', re.DOTALL)
"""A string, or an unfinished one at the end: it always matches, so the time is linear."""
_BRACKETS = b"[]{}"
_NO_BRACKETS = bytes(set(range(256)) - set(_BRACKETS))
_STEPS = [0] * 256
for _open, _close in ("[]", "{}"):
    _STEPS[ord(_open)], _STEPS[ord(_close)] = 1, -1


class BadRow(Exception):
    """A row is invalid; the text says why."""


class JsonRows:
    """A decoder of one type; `TypeError`, `NotImplementedError` or `NameError` if it cannot be
    decoded from JSON."""

    def __init__(self, value_type: Any) -> None:
        self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(value_type).decode

    def together(self, raws: Sequence[bytes], most_bytes: int = sys.maxsize) -> list[Any] | None:
        """The values, as far as they need no look at single rows; otherwise None.

        Rows with NUL, which Postgres does not store, or longer than `most_bytes` are never passed
        on.
        """
        longest = max(map(len, raws))
        if longest > most_bytes or (longest > 2 * MOST_DEPTH and any(map(is_too_deep, raws))):
            return None
        whole = b"\n".join(raws)
        if not is_utf_8(whole) or _NUL in whole:
            return None
        try:
            return list(map(self._decode, raws))
        except Exception:  # a type's __post_init__ may raise anything
            return None

    def one(self, raw: bytes) -> Any:
        """`BadRow` if it is not JSON of this type."""
        try:
            raw.decode()  # msgspec does not look at members that the type does not have
        except UnicodeDecodeError as error:
            raise BadRow(f"byte {error.start + 1:,} is not UTF-8: {error.reason}") from None
        if is_too_deep(raw):
            raise BadRow(f"it is nested more than {MOST_DEPTH} levels deep")
        try:
            return self._decode(raw)
        except msgspec.MsgspecError as error:
            raise BadRow(str(error)) from None
        except Exception as error:
            raise BadRow(reason(error)) from None


def is_utf_8(data: bytes) -> bool:
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError:
            return False
    return True


def is_too_deep(raw: bytes) -> bool:
    if raw.count(b"[") + raw.count(b"{") <= MOST_DEPTH:
        return False
    brackets = without_strings(raw).translate(None, _NO_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > MOST_DEPTH


def without_strings(raw: bytes) -> bytes:
    return _STRING.sub(b"", raw)
