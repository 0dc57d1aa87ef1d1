"""The pipelines of the current folder, found in the text of its modules: nothing is imported."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

MOST_FILES = 200
MOST_BYTES = 1 << 18
"""A completion answers within a moment: of more files, and of longer ones, it knows nothing."""

PIPELINE = re.compile(
    r"^(?:(?P<name>\w+)(?::\s*\w+)?\s*=\s*Pipeline\(|def\s+(?P<function>\w+)\(\)\s*->\s*Pipeline\b"
    r"|(?P<usual>pipeline)\s*=)",
    re.MULTILINE,
)
"""A name that is a pipeline, a function that returns one, or `pipeline` of another origin."""


def targets(incomplete: str) -> list[str]:
    """Words for MODULE:PIPELINE that begin with `incomplete`, and files of SQL.

    Args:
        incomplete: the word so far; its packages say in which folder the modules are.
    """
    folder = Path()
    package, dot, _ = incomplete.partition(":")[0].rpartition(".")
    place = folder.joinpath(*package.split(".")) if dot else folder
    found = [] if dot else [path.name for path in _files(folder, "*.sql")]
    for path in _files(place, "*.py"):
        module = f"{package}{dot}{path.stem}"
        found += [f"{module}:{name}" for name in _pipelines(path)]
    return [target for target in found if target.startswith(incomplete)]


def _files(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(folder.glob(pattern))[:MOST_FILES]
    except OSError:
        return []


def _pipelines(path: Path) -> Iterator[str]:
    try:
        if path.stat().st_size > MOST_BYTES:
            return
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return
    names = (found.lastgroup and found[found.lastgroup] for found in PIPELINE.finditer(text))
    yield from dict.fromkeys(name for name in names if name)
