"""HTML of figures. All that comes from a store is a stranger's text: Jinja escapes it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from importlib import resources
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup

from millwheel.core.quantities import byte_text, count_of, duration, per_second_text, short_duration
from millwheel.store.console.inspection import BEGIN_OF_TIME, END_OF_TIME
from millwheel.ui.line_chart import line_charts
from millwheel.ui.live_graph import live_graph
from millwheel.ui.ring_strip import pattern_of, patterns, ring_strip
from millwheel.ui.sparkline import sparkline

SHOWN_CHARACTERS = 4_000
"""Of a text; the rest is in the JSON."""

BIDI = dict.fromkeys(
    map(ord, "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c"), "\ufffd"
)
"""Marks that turn the direction of text, so that it reads as another one."""

ESCAPED_BIDI = {mark: f"\\u{mark:04x}" for mark in BIDI}
"""In JSON: the same value, so that links and fields that have a key name that key."""


class FigureTemplates(jinja2.Environment):
    """Fields of figures are items of dicts; a field may have the name of a method of dicts."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, dict):
            return self.getitem(obj, attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(obj, dict):
            try:
                return obj[argument]
            except KeyError:
                return self.undefined(obj=obj, name=argument)
        return super().getitem(obj, argument)


@cache
def environment() -> FigureTemplates:
    made = FigureTemplates(
        loader=jinja2.PackageLoader("millwheel.ui"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        amount=amount,
        bytes=byte_text,
        count_of=count_of,
        duration=lambda seconds: "unknown" if seconds is None else duration(seconds),
        json=json_text,
        line_charts=line_charts,
        live_graph=live_graph,
        moment=moment,
        percent=lambda share: f"{share:.0%}",
        rate=rate,
        ring_strip=ring_strip,
        short_duration=short_duration,
        shown=shown,
        sparkline=sparkline,
    )
    made.globals.update(pattern_of=pattern_of, patterns=patterns)
    return made


def render(template: str, values: Mapping[str, Any]) -> str:
    return environment().get_template(template).render(values)


@cache
def static_files() -> dict[str, bytes]:
    """Contents by name."""
    folder = resources.files("millwheel.ui") / "static"
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.is_file()}


@cache
def digest_of(name: str) -> str:
    """A part of a static file's address: with other contents it has another one."""
    return hashlib.sha256(static_files()[name]).hexdigest()[:12]


def amount(number: float | None) -> str:
    """A number with separators, or ``unknown``."""
    if number is None:
        return "unknown"
    return f"{number:,}" if isinstance(number, int) else f"{number:,.1f}"


def rate(per_second: float | None) -> str:
    return "" if per_second is None else per_second_text(per_second)


def shown(text: Any, most: int = SHOWN_CHARACTERS) -> str:
    """A text of a stranger, of limited length, with marks of direction taken out."""
    return _shortened(str(text).translate(BIDI), most)


def json_text(value: Any, indent: int = -1) -> str:
    """A key or a value as JSON."""
    encoded = msgspec.json.encode(value, enc_hook=str)
    if indent >= 0:
        encoded = msgspec.json.format(encoded, indent=indent)
    return _shortened(encoded.decode().translate(ESCAPED_BIDI))


def _shortened(text: str, most: int = SHOWN_CHARACTERS) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


def moment(text: str | None) -> str | Markup:
    """A time in UTC; a script of the page adds it in the viewer's zone."""
    if not text:
        return ""
    if text == END_OF_TIME:
        return "the end of event time"
    if text == BEGIN_OF_TIME:
        return "no time yet"
    try:
        at = datetime.fromisoformat(text)
    except ValueError:  # after the year 9999, or before Christ
        return text
    return Markup('<time datetime="{}">{} UTC</time>').format(
        at.isoformat(), f"{at:%Y-%m-%d %H:%M:%S}"
    )
