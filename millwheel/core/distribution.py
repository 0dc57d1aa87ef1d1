"""The name by which package indexes know millwheel.

`millwheel` on PyPI is another project, a scheduler, with the same import name.
"""

from __future__ import annotations

import sys
from pathlib import Path

from millwheel.errors import UsageError

DISTRIBUTION = "millwheel-engine"


def install(extra: str) -> str:
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def check_alone(packages: Path = Path(__file__).parents[2]) -> None:
    """`UsageError` if the other project is installed in the same directory, or was: each overwrites
    files of the other, and takes them along when it is removed."""
    for found in packages.glob("millwheel-*.dist-info"):
        record = found / "RECORD"
        if record.is_file() and "millwheel/__init__.py," in record.read_text("utf-8"):
            raise UsageError(
                "the distribution 'millwheel' is another project, and is installed in the same "
                f"place as {DISTRIBUTION!r}: {found}. Both have a package 'millwheel', and the "
                "one installed last has overwritten files of the other. Remove both, then "
                f"install this one: pip uninstall millwheel {DISTRIBUTION}; pip install "
                f"{DISTRIBUTION}"
            )
    if not hasattr(sys.modules.get("millwheel"), "PUBLIC_MODULES"):
        raise UsageError(
            f"files of {DISTRIBUTION!r} are missing, such as {packages}/millwheel/__init__.py: "
            "another distribution with a package 'millwheel' has overwritten or removed them. "
            f"Install it again: pip install --force-reinstall --no-deps {DISTRIBUTION}"
        )
