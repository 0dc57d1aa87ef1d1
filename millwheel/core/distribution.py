"""The name by which package indexes know millwheel.

The distribution `millwheel` on PyPI is another project, a scheduler, with the same import name. So
the distribution of this one has a name of its own; the import name and the command are `millwheel`.
"""

from __future__ import annotations

from pathlib import Path

from millwheel.errors import UsageError

DISTRIBUTION = "millwheel-engine"
"""The name in pyproject.toml, and in every message and page about installing."""


def install(extra: str) -> str:
    """Return the command that installs an extra, for messages."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def check_alone(packages: Path = Path(__file__).parents[2]) -> None:
    """Refuse to run beside the other project: each installation overwrites files of the other.

    Args:
        packages: the directory that holds the package `millwheel`.

    Raises:
        UsageError: the distribution `millwheel` is installed in the same directory.
    """
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
