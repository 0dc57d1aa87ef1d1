"""The files of the product."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

FOLDERS = ("millwheel", "store", "timers", "computations", "migrations")
"""All but the first are also links in the first; each file counts once."""

TEMPLATES = ROOT / "millwheel" / "templates"
"""Files of projects that users begin with; the product imports none of them."""


def product_files() -> list[Path]:
    """The Python files of the product."""
    found = {path.resolve() for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    return sorted(path for path in found if not path.is_relative_to(TEMPLATES))
