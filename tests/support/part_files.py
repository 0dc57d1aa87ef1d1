"""The lines of part files."""

from __future__ import annotations

from pathlib import Path

import msgspec


def written_numbers(directory: Path) -> list[int]:
    """The numbers in the lines of all part files."""
    return [
        msgspec.json.decode(line)["number"]
        for path in sorted(directory.glob("*.jsonl"))
        for line in path.read_bytes().splitlines()
    ]
