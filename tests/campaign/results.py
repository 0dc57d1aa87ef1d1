"""What came of a run, as one line of JSON; a campaign is the file of these lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec


class FaultCount(msgspec.Struct):
    """How often a fault happened in a run."""

    struck: int = 0
    effective: int = 0
    stalls: list[float] = []
    """Seconds, of each that was effective."""
    without_effect: list[str] = []


class Result(msgspec.Struct):
    """How one run went."""

    name: str
    seed: int
    guarantee: str = ""
    seconds: float = 0.0
    records: int = 0
    """Read by the source."""
    commits: int = 0
    looks: int = 0
    """Snapshots that the reader has checked."""
    looks_refused: int = 0
    unknown_commits: int = 0
    """Of which a worker did not know what became of them."""
    faults: dict[str, FaultCount] = {}
    anomalies: dict[str, int] = {}
    told: list[str] = []
    """Anomalies in words, the first of them."""
    differences: list[str] | None = None
    """Between what is stored in the end and what must be, by SQL; None: nobody has looked."""
    broken_chains: int = -1
    """Commits that do not follow the one before; -1: nobody has looked."""
    exits: dict[str, int] = {}
    events: dict[str, int] = {}
    errors: list[str] = []
    refused: str = ""
    """Why this machine could not do it."""

    @property
    def good(self) -> bool:
        """Nothing lost, nothing doubled, nothing that should not have been seen."""
        return (
            not self.refused
            and not self.anomalies
            and self.differences == []
            and self.broken_chains == 0
            and not self.errors
        )


def write(path: Path, result: Result) -> None:
    """One more line; it is whole, or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        file.seek(max(0, file.tell() - 1))
        ended = file.read() in (b"", b"\n")  # else: it was ended while it wrote
        file.write(b"" if ended else b"\n")
        file.write(msgspec.json.encode(result) + b"\n")


def read(path: Path) -> Iterator[Result]:
    """All lines that are whole."""
    if not path.exists():
        return
    for line in path.read_bytes().splitlines():
        try:
            yield msgspec.json.decode(line, type=Result)
        except msgspec.DecodeError:
            continue  # the campaign was ended while this one was written
