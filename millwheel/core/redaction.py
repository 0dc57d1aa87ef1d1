"""Redacts keys, which are often personal data, in logs and pages.

With ``MILLWHEEL_REDACT_KEYS=1`` a key is shown as ``key#1a2b3c4d``, a hash that is the same
wherever it appears. The tables of the store, and the commands that read them, show keys.
"""

from __future__ import annotations

import os
from json import JSONDecoder

from xxhash import xxh3_64_hexdigest

from millwheel.core.codec import KEY_CHARACTERS, decode_key, shown
from millwheel.core.model import Key

HIDDEN_VALUE = "(hidden)"

VARIABLE = "MILLWHEEL_REDACT_KEYS"


def redacts() -> bool:
    return os.environ.get(VARIABLE, "0") not in ("", "0")


def shown_key(key: Key) -> str:
    text = shown(key, KEY_CHARACTERS)
    return hidden(repr(key)) if redacts() else text


def hidden(text: str) -> str:
    return f"key#{xxh3_64_hexdigest(text.encode('utf-8', 'surrogatepass'))[:8]}"


def without_key(text: str) -> str:
    """A text of the view `watermark_holders` with a hash in place of its key: ``key "ann": timer
    end, due …``."""
    begin = "key "
    if not text.startswith(begin):
        return text
    try:
        _, end = JSONDecoder().raw_decode(text, len(begin))
        key = decode_key(text[len(begin) : end].encode())
    except ValueError:
        return hidden(text)
    return hidden(repr(key)) + text[end:]
