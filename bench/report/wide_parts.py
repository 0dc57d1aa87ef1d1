"""Sections on growth, the Nexmark queries and other engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.report.model import Chart, Line, Ratio, Section, Table

Found = Any
RATE, MEGABYTES = "records/s", "peak memory, MB"


def _growth(name: str, x: str, heads: tuple[str, ...]) -> Callable[[Found], Section]:
    def section(found: Found) -> Section:
        points = found["points"]
        return Section(
            f"Growth: rate and memory by {TITLES.get(x, x)}",
            [Ratio(bar["what"], bar["found"], bar["asked"]) for bar in found["bars"]],
            [Table([TITLES.get(h, h) for h in heads], [[p[h] for h in heads] for p in points])],
            _curves(name, x, points),
        )

    return section


GROWTH = {
    f"growth-{name}": _growth(name, x, heads)
    for name, x, heads in (
        ("keys", "keys", ("way", "keys", "rate", "raw_reads", "peak_megabytes", "cache_megabytes")),
        ("sizes", "bytes", ("bytes", "rate", "megabytes_per_second", "peak_megabytes")),
        ("history", "ids", ("ids", "rate", "maybes", "filters_seconds", "peak_megabytes")),
        ("timers", "timers", ("timers", "rate", "start_seconds", "peak_megabytes")),
        ("depth", "stages", ("stages", "rate", "hops", "peak_megabytes")),
        ("workers", "workers", ("workers", "rate", "python_cores", "postgres_cores",
                                "peak_megabytes")),
    )
}  # fmt: skip
"""The section of each growth curve."""


TITLES = {
    "rate": RATE,
    "peak_megabytes": MEGABYTES,
    "cache_megabytes": "cache, MB",
    "raw_reads": "raw SQL, states read/s",
    "bytes": "bytes of state per key",
    "megabytes_per_second": "state written, MB/s",
    "ids": "seen ids",
    "maybes": "look-ups per record",
    "filters_seconds": "time until filters are ready, s",
    "timers": "pending timers",
    "start_seconds": "start time, s",
    "hops": "hops/s",
    "python_cores": "Python, cores",
    "postgres_cores": "Postgres, cores",
}
WIDE = frozenset(("keys", "sizes", "history", "timers"))
"""Curves over several powers of ten."""


def _curves(name: str, x: str, points: list[dict[str, Any]]) -> list[Chart]:
    """Create the charts of rate and memory."""
    ways = sorted({p.get("way", "") for p in points}, reverse=True)
    title = TITLES.get(x, x)
    rates = [
        _line(way or "millwheel", x, "rate", [p for p in points if p.get("way", "") == way])
        for way in ways
    ]
    sizes = [_line(line.label, x, "peak_megabytes", [p for p in points if p.get("way", "") == way])
             for line, way in zip(rates, ways, strict=True)]  # fmt: skip
    if name == "keys":
        uniform = [p for p in points if p["way"] == "uniform"]
        rates.append(_line("raw SQL reads", x, "raw_reads", uniform))
    log_y = name == "sizes"
    return [
        Chart(f"growth-{name}-rate", f"Rate by {title}", title, RATE, rates, log_x=name in WIDE,
              log_y=log_y),
        Chart(f"growth-{name}-memory", f"Memory by {title}", title, MEGABYTES, sizes,
              log_x=name in WIDE),
    ]  # fmt: skip


def _line(label: str, x: str, y: str, points: list[dict[str, Any]]) -> Line:
    return Line(label, [p[x] for p in points], [p[y] for p in points])


def nexmark(found: Found) -> Section:
    """The Nexmark queries."""
    queries = found["queries"]
    base = queries[0]["rows_per_second"]
    return Section(
        f"Nexmark, one worker, {found['events']:,} events",
        [
            Ratio(f"rows read/s, {q['query']} / {queries[0]['query']}", q["rows_per_second"] / base)
            for q in queries[1:]
        ],
        [
            Table(
                ("query", "content", "events/s", "rows read/s", MEGABYTES),
                [
                    [q[key] for key in ("query", "what", "events_per_second", "rows_per_second",
                                        "peak_megabytes")]
                    for q in queries
                ],
            )
        ],
        [
            Chart(
                "nexmark",
                "Nexmark: rows read per second",
                "rows read/s",
                "",
                bars=[(q["query"], q["rows_per_second"]) for q in queries],
            )
        ],
    )  # fmt: skip


def peers(found: Found) -> Section:
    """Other engines, each compared with millwheel."""
    done = [line for line in found["rates"] if "failed" not in line]
    failed = [line for line in found["rates"] if "failed" in line]
    return Section(
        "Other engines on the same input, each paired with a run of millwheel",
        [
            Ratio(
                f"rate, {_label(line)} / millwheel on {line['between']}", line["ratio"],
                line["durability"]
            )
            for line in done
        ]
        + _latency_ratios(found.get("latency"))
        + _ratios_on_topics(found.get("latency_on_topics")),
        [
            Table(
                ("peer", "setting", "durability", RATE, "ratio", "CPU, us per record",
                 "millwheel's CPU, us per record", "records", "memory of its processes, MB"),
                [
                    [line[key] for key in ("peer", "setting", "durability", "rate", "ratio",
                                           "cpu_micros", "millwheel_cpu_micros", "records",
                                           "megabytes")]
                    for line in done
                ],
            ),
            *_latency_tables(found.get("latency")),
            *_tables_on_topics(found.get("latency_on_topics")),
        ],
        [
            Chart(
                "peers",
                "Rate of other engines, as a multiple of millwheel's",
                "ratio to millwheel (log)",
                "",
                bars=[(_label(line), line["ratio"]) for line in done],
                log_x=True,
                mark=("millwheel", 1.0),
            )
        ]
        if done
        else [],
        [
            *_wins(done),
            *(f"{_label(line)} did not run: {line['failed'][:300]}" for line in failed),
            *([found["not_run"]] if "not_run" in found else []),
        ],
    )  # fmt: skip


def _label(line: dict[str, Any]) -> str:
    return f"{line['peer']}, {line['setting']}"


def _wins(lines: list[dict[str, Any]]) -> list[str]:
    """Name the peers that are faster than millwheel, or use less CPU."""
    wins = []
    for line in lines:
        if line["peer"] == "millwheel":
            continue
        if line["ratio"] > 1:
            wins.append(
                f"**{_label(line)} is faster than millwheel**: {line['ratio']:.2f} times its rate "
                f"(durability: {line['durability']})."
            )
        if line["cpu_micros"] < line["millwheel_cpu_micros"]:
            wins.append(
                f"**{_label(line)} needs less CPU than millwheel**: "
                f"{line['cpu_micros'] / line['millwheel_cpu_micros']:.2f} of its CPU per record "
                f"(durability: {line['durability']})."
            )
    return wins


def _latency_ratios(latency: dict[str, Any] | None) -> list[Ratio]:
    if latency is None or "failed" in latency:
        return []
    what = f"p50 at {latency['load']:.0f} records/s, arrival to durable output, Spark / millwheel"
    return [Ratio(what, latency["ratio_p50"])]


def _latency_tables(latency: dict[str, Any] | None) -> list[Table]:
    if latency is None or "failed" in latency:
        return []
    cuts = ("p50_ms", "p95_ms", "p99_ms")
    return [
        Table(
            (f"latency at {latency['load']:.0f} records/s", "p50, ms", "p95, ms", "p99, ms"),
            [[name, *(latency[name][cut] for cut in cuts)] for name in ("millwheel", "Spark")],
        )
    ]


def _ratios_on_topics(latency: dict[str, Any] | None) -> list[Ratio]:
    if latency is None:
        return []
    medians = latency["medians"]
    bare = medians["a transaction of one record"]["p50_ms"]
    return [
        Ratio(
            f"p50 at {latency['load']:.0f} records/s, written to readable, {name} / a transaction "
            "of one record",
            figures["p50_ms"] / bare,
        )
        for name, figures in medians.items()
        if figures["p50_ms"] != bare
    ]


def _tables_on_topics(latency: dict[str, Any] | None) -> list[Table]:
    if latency is None:
        return []
    cuts = ("p50_ms", "p95_ms", "p99_ms")
    title = f"from topic to topic at {latency['load']:.0f} records/s"
    return [
        Table(
            (title, "p50, ms", "p95, ms", "p99, ms"),
            [[name, *(found[cut] for cut in cuts)] for name, found in latency["medians"].items()],
        )
    ]
