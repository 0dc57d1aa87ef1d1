"""The ring of a step as a strip of SVG: its intervals by owner, with their load above."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

INKS = 4
"""Colours of owners, as the style has them."""

MARKS = 3
"""Patterns over a colour: none, stripes, dots."""

LETTER_SHARE = 0.035
"""Least part of the ring on which an owner's letter has room, on a narrow screen too."""

WORDS_SHARE = 0.2
"""Least part on which two words have room."""

LOAD_HEIGHT = 12
BAND_HEIGHT = 24
BAND_TOP = LOAD_HEIGHT + 2
HEIGHT = BAND_TOP + BAND_HEIGHT

SEGMENT = Markup(
    '<g><title>{title}</title><rect class="segment {kind}" x="{x}%" y="{y}" width="{width}%"'
    ' height="{height}" fill="url(#{fill})"/></g>'
)
LOAD = Markup('<rect class="load {kind}" x="{x}%" y="{y}" width="{width}%" height="{height}"/>')
LETTER = Markup('<text class="letter" x="{x}%" y="{y}" text-anchor="middle">{text}</text>')
CUT = Markup('<line class="cut" x1="{x}%" x2="{x}%" y1="0" y2="{height}"/>')


def ring_strip(ring: Mapping[str, Any], most: float) -> Markup:
    """The strip of a `millwheel.ui.pages.workers_page.StepRing`, as JSON has it.

    Args:
        most: CPU of the highest bar.
    """
    segments = ring["segments"]
    drawn = [part for one in segments for part in _drawn(one, most)]
    return Markup(
        '<svg class="strip" role="img" aria-label="{label}" width="100%" height="{height}">'
        "{drawn}</svg>"
    ).format(label=ring["in_words"], height=HEIGHT, drawn=Markup("").join(drawn))


def pattern_of(number: int | None) -> str:
    """The id of an owner's pattern; None: an interval without one."""
    return "own-none" if number is None else f"own-{number % (INKS * MARKS)}"


def patterns() -> Markup:
    """The patterns that strips refer to; once in a page."""
    made = [_pattern(number) for number in range(INKS * MARKS)]
    none = Markup(
        '<pattern id="own-none" width="8" height="8" patternUnits="userSpaceOnUse">'
        '<path class="nobody" d="M0 0L8 8M8 0L0 8"/></pattern>'
    )
    return Markup(
        '<svg class="patterns" width="0" height="0" aria-hidden="true"><defs>{}</defs></svg>'
    ).format(Markup("").join([*made, none]))


def _pattern(number: int) -> Markup:
    mark = (
        Markup(""),
        Markup('<path class="stripe" d="M-2 2L2 -2M0 8L8 0M6 10L10 6"/>'),
        Markup('<circle class="dot" cx="4" cy="4" r="1.6"/>'),
    )[number // INKS]
    return Markup(
        '<pattern id="own-{number}" width="8" height="8" patternUnits="userSpaceOnUse"'
        ' class="ink-{ink}"><rect class="wash" width="8" height="8"/>{mark}</pattern>'
    ).format(number=number, ink=number % INKS, mark=mark)


def _drawn(one: Mapping[str, Any], most: float) -> list[Markup]:
    x, width = 100 * one["begin"], 100 * one["share"]
    place = {"x": f"{x:.3f}", "width": f"{width:.3f}"}
    kind = "moving" if one["is_moving"] else ("unowned" if one["letter"] == "" else "")
    parts = [
        SEGMENT.format(
            title=one["in_words"], kind=kind, y=BAND_TOP, height=BAND_HEIGHT,
            fill=pattern_of(one["number"]), **place,
        )
    ]  # fmt: skip
    if one["cpu"]:
        height = max(1.0, LOAD_HEIGHT * one["cpu"] / most)
        hot = "hot" if one["is_hot"] else ""
        top = f"{LOAD_HEIGHT - height:.1f}"
        parts.append(LOAD.format(kind=hot, y=top, height=f"{height:.1f}", **place))
    if one["share"] >= LETTER_SHARE:
        middle = f"{x + width / 2:.3f}"
        text = one["letter"] or ("no owner" if one["share"] >= WORDS_SHARE else "?")
        if one["is_moving"] and one["share"] >= 2 * LETTER_SHARE:
            text += f"→{one['to_letter']}"
        parts.append(LETTER.format(x=middle, y=BAND_TOP + 17, text=text))
    if one["cut"] is not None:
        parts.append(CUT.format(x=f"{100 * one['cut']:.3f}", height=HEIGHT))
    return parts
