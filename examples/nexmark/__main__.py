"""``python -m examples.nexmark --write DIR`` writes the events as JSON Lines, a file for each kind.

The options are those of the package. With ``NEXMARK_DIR=DIR`` the queries then read the same
events.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from examples.nexmark.options import Options
from examples.nexmark.sources import FILES, write
from millwheel.errors import UsageError


def main(arguments: list[str] | None = None) -> int:
    """Write the files; returns 2 if an option is not valid."""
    parser = argparse.ArgumentParser(prog="python -m examples.nexmark", description=__doc__)
    parser.add_argument("--write", metavar="DIR", type=Path, required=True)
    directory: Path = parser.parse_args(arguments).write
    try:
        options = Options.from_environment()
        written = write(directory, options)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for kind, lines in written.items():
        print(f"{directory / FILES[kind]}: {lines:,} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
