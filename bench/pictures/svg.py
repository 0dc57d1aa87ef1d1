"""A card with its own background, readable on light and dark pages, and its elements.

A picture stands still with everything shown where animation is off, or is not supported: all rules
of an animation are inside ``prefers-reduced-motion: no-preference``.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from textwrap import indent

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"

LIGHT = {
    "card": "#fbfcfe", "edge": "#d5dbe3", "ink": "#1d2733", "quiet": "#5a6877", "grid": "#dfe5ec",
    "water": "#2a78d6", "good": "#15803d", "bad": "#c81e3a",
}  # fmt: skip
DARK = {
    "card": "#151a21", "edge": "#333c48", "ink": "#e8edf3", "quiet": "#9aa8b8", "grid": "#2a323d",
    "water": "#63a8f7", "good": "#4ccb7c", "bad": "#ff7285",
}  # fmt: skip

FONT = "font-family: system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif"


def _colors(palette: dict[str, str]) -> str:
    return "svg { " + " ".join(f"--{name}: {color};" for name, color in palette.items()) + " }"


def card(
    size: tuple[int, int],
    *,
    title: str,
    description: str,
    style: str,
    moving: str,
    body: list[str],
) -> str:
    """A picture.

    Args:
        size: width and height.
        title: read aloud instead of the picture, with the description.
        style: rules that always hold.
        moving: rules of the animation.
        body: the elements, from back to front.
    """
    width, height = size
    rules = "\n".join(
        [
            _colors(LIGHT),
            f"@media (prefers-color-scheme: dark) {{ {_colors(DARK)} }}",
            f"text {{ {FONT}; fill: var(--ink) }}",
            style.strip(),
            "@media (prefers-reduced-motion: no-preference) {",
            indent(moving.strip(), "  "),
            "}",
        ]
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            'aria-labelledby="title description">',
            f'<title id="title">{escape(title)}</title>',
            f'<desc id="description">{escape(description)}</desc>',
            f"<style>\n{rules}\n</style>",
            f'<rect x="1" y="1" width="{width - 2}" height="{height - 2}" rx="14" '
            'style="fill: var(--card); stroke: var(--edge)"/>',
            *body,
            "</svg>\n",
        ]
    )


def number(value: float) -> str:
    """A coordinate with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """A line of text; ``kind`` names its classes."""
    return (
        f'<text x="{number(x)}" y="{number(y)}" class="{kind}" text-anchor="{anchor}">'
        f"{escape(words)}</text>"
    )


def rectangle(x: float, y: float, width: float, height: float, kind: str) -> str:
    """A rectangle; ``kind`` names its classes."""
    return (
        f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" '
        f'height="{number(height)}" class="{kind}"/>'
    )


def path(points: list[tuple[float, float]], kind: str) -> str:
    """A line through points; ``kind`` names its classes."""
    drawn = "L".join(f"{number(x)},{number(y)}" for x, y in points)
    return f'<path d="M{drawn}" class="{kind}"/>'


def keyframes(name: str, seconds: float, frames: dict[float, str], begin: float = 0.0) -> str:
    """Rules for a class of this name, which repeat for ever.

    Args:
        seconds: the length of one turn.
        frames: declarations by second, from 0 to `seconds`.
        begin: the second with which the first turn begins.
    """
    steps = " ".join(
        f"{number(100 * second / seconds)}% {{ {rule} }}" for second, rule in frames.items()
    )
    return (
        f".{name} {{ animation: {name} {number(seconds)}s linear {number(-begin)}s infinite }}\n"
        f"@keyframes {name} {{ {steps} }}"
    )
