"""Write a report: first ratios, then absolute figures, each with the command that measures it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from bench.report import charts, engine_parts, wide_parts
from bench.report.model import Section, Table
from millwheel.core.distribution import install

SECTIONS: dict[str, Callable[[Any], Section]] = {
    "rate": engine_parts.rate,
    "before": engine_parts.before,
    "instructions": engine_parts.instructions,
    "latency": engine_parts.latency,
    "ingest": engine_parts.ingest,
    "kafka": engine_parts.kafka,
    "reader-wait": engine_parts.reader_wait,
    "aggregates": engine_parts.aggregates,
    "spark": engine_parts.on_spark,
    "spark-most-keys": engine_parts.on_spark,
    "spark-start": engine_parts.spark_start,
    "state-rows": engine_parts.state_rows,
    "looks": engine_parts.looks,
    "pages": engine_parts.pages,
    "copies": engine_parts.copies,
    "watched": engine_parts.watched,
    "commits": engine_parts.commits,
    "seen": engine_parts.seen,
    "shares": engine_parts.shares,
    "cells": engine_parts.cells,
    "slow": engine_parts.slow,
    "parked": engine_parts.parked,
    "snapshot": engine_parts.snapshot,
    "memory": engine_parts.memory,
    "timers": engine_parts.timers,
    "hot": engine_parts.hot,
    "lag": engine_parts.lag,
    "workers": engine_parts.workers,
    "takeover": engine_parts.takeover,
    "evolving": engine_parts.evolving,
    "kills": engine_parts.kills,
    "trees": engine_parts.trees,
    "ways": engine_parts.ways,
    "windows": engine_parts.windows,
    "queries": engine_parts.queries,
    "nexmark": wide_parts.nexmark,
    **wide_parts.GROWTH,
    "peers": wide_parts.peers,
}
NO_CHARTS = f"No charts: matplotlib is not installed (`{install('bench')}`)."


class Part(NamedTuple):
    """The results of one part."""

    name: str
    found: Any
    source: Path
    """The file with the results."""
    run: dict[str, Any]
    """The content of the file, with machine and command."""


def gather(sources: Iterable[Path]) -> list[Part]:
    """Read the parts from files; for a part in several files, the last file counts."""
    parts: dict[str, Part] = {}
    for source in sources:
        run = json.loads(source.read_text())
        for name in SECTIONS:
            if name in run:
                parts[name] = Part(name, run[name], source, run)
    return [parts[name] for name in SECTIONS if name in parts]


def section_of(part: Part) -> Section:
    """Create the section on a part; only a remark if its figures have an outdated format."""
    try:
        return SECTIONS[part.name](part.found)
    except (KeyError, TypeError):
        words = f"{part.name}: {part.source.name} has an outdated format; measure it again."
        return Section(part.name, words=[words])


def write(sources: Iterable[Path], directory: Path) -> Path:
    """Write `report.md` with its charts and raw figures into a directory; return its path."""
    parts = gather(sources)
    directory.mkdir(parents=True, exist_ok=True)
    for source in {part.source for part in parts}:
        shutil.copy(source, directory / source.name)
    sections = [(part, section_of(part)) for part in parts]
    lines = ["# Benchmark results", "", *_machines(parts), *_ratios(sections)]
    for part, section in sections:
        lines += _section(part, section, directory)
    path = directory / "report.md"
    path.write_text("\n".join(lines) + "\n")
    return path


def _machines(parts: list[Part]) -> list[str]:
    """List machine and command of each file."""
    lines = []
    for source in sorted({part.source for part in parts}):
        run = next(part.run for part in parts if part.source == source)
        machine = run["machine"]
        memory = machine.get("memory_gigabytes")
        lines.append(
            f"* [{source.name}]({source.name}): {machine['cores']} cores ({machine['machine']})"
            + (f", {memory} GB" if memory else "")
            + f", {machine['system']}, Python {machine['python']}, Postgres {machine['postgres']}; "
            f"load before: {machine['load_before']:.2f}; `{_command(run)}`"
            + (" (**quick: a check only**)" if run.get("quick") else "")
        )
    return [*lines, ""]


def _command(run: dict[str, Any]) -> str:
    return str(run.get("command", "python -m bench"))


def _command_of(part: Part) -> str:
    quick = " --quick" if part.run.get("quick") else ""
    return f"python -m bench {part.name}{quick}"


def _ratios(sections: list[tuple[Part, Section]]) -> list[str]:
    """Write the table of all ratios, which are comparable between machines."""
    rows = [
        (ratio.what, "never" if ratio.found is None else ratio.found, ratio.asked,
         f"`{_command_of(part)}`")
        for part, section in sections
        for ratio in section.ratios
    ]  # fmt: skip
    return [
        "## Ratios",
        "",
        "Both sides of each ratio were measured in the same run.",
        "",
        *_table(Table(("ratio", "measured", "required, or its meaning", "command"), rows), ".2f"),
    ]


def _section(part: Part, section: Section, directory: Path) -> list[str]:
    lines = [
        f"## {section.title}",
        "",
        f"`{_command_of(part)}`; raw figures: [{part.source.name}]({part.source.name})",
        "",
    ]
    for words in section.words:
        lines += [words, ""]
    for table in section.tables:
        lines += _table(table)
    if section.charts and not charts.can_draw():
        return [*lines, NO_CHARTS, ""]
    for chart in section.charts:
        drawn = charts.draw(chart, directory)
        lines += [f"![{chart.title}]({drawn.name})", ""]
    return lines


def _table(table: Table, style: str = "") -> list[str]:
    """Write a Markdown table, with right-aligned figures."""
    rows = [[_cell(value, style) for value in row] for row in table.rows]
    numeric = [
        bool(table.rows) and all(isinstance(row[place], int | float) for row in table.rows)
        for place in range(len(table.head))
    ]
    return [
        "| " + " | ".join(table.head) + " |",
        "|" + "|".join("---:" if is_numeric else "---" for is_numeric in numeric) + "|",
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
    ]


def _cell(value: Any, style: str) -> str:
    """Format a figure with its significant digits."""
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|")
    if style:
        return f"{value:{style}}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
