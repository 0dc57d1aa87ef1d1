"""The user's code for executors: a package, or a module, as a zip file."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from types import ModuleType

from millwheel.errors import UsageError

MOST_BYTES = 64 << 20


def top_level(module_name: str) -> ModuleType | None:
    """The user's package or module that a module belongs to.

    None for an installed one, such as millwheel's: it must be installed where executors run.
    """
    top = sys.modules[module_name.partition(".")[0]]
    places = [*getattr(top, "__path__", ()), getattr(top, "__file__", None) or ""]
    installed = any("site-packages" in Path(place).parts for place in places)
    return None if installed or top.__name__ in ("millwheel", "__main__") else top


def zipped(top: ModuleType, directory: Path) -> Path:
    """`UsageError` above `MOST_BYTES` of code."""
    target = directory / f"{top.__name__}.zip"
    total = 0
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as file:
        for root, paths in _sources(top):
            for path in paths:
                total += path.stat().st_size
                if total > MOST_BYTES:
                    raise UsageError(
                        f"the package {top.__name__!r} has more than {MOST_BYTES >> 20} MiB of "
                        "Python files: install it on the executors in place of sending it"
                    )
                file.write(path, path.relative_to(root))
    return target


def _sources(top: ModuleType) -> list[tuple[Path, list[Path]]]:
    if hasattr(top, "__path__"):
        return [(Path(place).parent, sorted(Path(place).rglob("*.py"))) for place in top.__path__]
    assert top.__file__ is not None
    path = Path(top.__file__)
    return [(path.parent, [path])]
