"""``python -m bench [PART ...] [--quick]``: measure, print, save as JSON, and write a report.

``python -m bench report [--from JSON ...]`` writes a report of earlier results.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import psycopg

from bench import quiet
from bench.kafka import START
from bench.parts import DEFAULT, GROUPS, PARTS
from bench.report.writing import write
from bench.server import server
from millwheel.services import loop

OUT = Path(__file__).parent / "out"


def machine(url: str) -> dict[str, Any]:
    """Describe the machine, Python and Postgres."""
    with psycopg.connect(url) as connection:
        version = connection.info.server_version
    return {
        "cores": os.cpu_count(),
        "memory_gigabytes": round(
            os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1
        ),
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "postgres": f"{version // 10_000}.{version % 10_000}",
        "load_before": os.getloadavg()[0],
    }


async def run(options: argparse.Namespace, path: Path) -> None:
    """Run the parts one after the other on one server; save the results after each."""
    results: dict[str, Any] = {"command": command(sys.argv[1:]), "quick": options.quick}
    with server() as (url, directory):
        results["machine"] = machine(url)
        print("machine:", json.dumps(results["machine"]))
        for name in options.parts or DEFAULT:
            results[name] = await PARTS[name](url, directory, options)
            path.write_text(json.dumps(results, indent=1))


def command(arguments: list[str]) -> str:
    """Return the command line, for the results."""
    return shlex.join(["python", "-m", "bench", *arguments])


def newest() -> list[Path]:
    """Return all result files, oldest first."""
    return sorted(OUT.glob("*.json"))


def parsed(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line.

    Raises:
        SystemExit: an argument is invalid.
    """
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="part",
        help=f"one of {', '.join((*PARTS, *GROUPS))}, report; default: {', '.join(DEFAULT)}",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="do a tenth of the work, as a check")
    parser.add_argument(
        "--only", nargs="+", metavar="PEER", help="for peers: spark, dbos-queue, ..."
    )
    parser.add_argument(
        "--kafka", nargs="?", const=START, metavar="HOST:PORT",
        help="for peers: read and write topics instead of files; the broker (default: start one)",
    )  # fmt: skip
    parser.add_argument(
        "--from", nargs="+", type=Path, dest="sources", metavar="JSON",
        help="for report: result files (default: all in bench/out; the newest of each part counts)",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    unknown = set(options.parts) - {*PARTS, *GROUPS, "report"}
    if unknown:
        known = ", ".join((*PARTS, *GROUPS, "report"))
        parser.error(f"there is no part {', '.join(sorted(unknown))}; parts: {known}")
    options.parts = [part for name in options.parts for part in GROUPS.get(name, [name])]
    if "report" in options.parts and len(options.parts) > 1:
        parser.error("report cannot be combined with parts: every run writes its own report")
    return options


def main() -> None:
    """Run the requested parts, or write a report of earlier results."""
    options = parsed(sys.argv[1:])
    OUT.mkdir(exist_ok=True)
    if options.parts == ["report"]:
        print(f"report: {shown(write(options.sources or newest(), OUT / 'report'))}")
        return
    quiet()
    path = OUT / time.strftime("%Y%m%d-%H%M%S.json")
    loop.run(run(options, path))
    print(f"figures: {shown(path)}\nreport: {shown(write([path], path.with_suffix('')))}")


def shown(path: Path) -> Path:
    """Make a path relative to the current directory, if it is below it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


if __name__ == "__main__":
    main()
