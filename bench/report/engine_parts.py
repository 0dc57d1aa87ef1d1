"""Sections on the engine by itself: each part beside its yardstick of the same run."""

from __future__ import annotations

from typing import Any

from bench.report.model import Chart, Line, Ratio, Section, Table

Found = Any
"""What a part measured, as JSON gives it back."""


def rate(found: Found) -> Section:
    """The engine beside raw SQL."""
    return Section(
        "Full load beside raw SQL of the same rows",
        [
            Ratio("engine / raw SQL, bundles of 500", found["ratio"]),
            Ratio("CPU a record, engine / raw SQL", found["cpu"]),
            Ratio("raw SQL, this layout / plain rows", found["layout"]),
            Ratio("three stages / (one stage / 3)", found["stages"]),
        ],
        [
            Table(
                ("pair", "what", "records/s", "Python, us a record", "Postgres, us a record"),
                [
                    (number, name, cost["rate"], cost["python_us"], cost["postgres_us"])
                    for number, costs in enumerate(found["pairs"], 1)
                    for name, cost in costs.items()
                ],
            ),
            Table(
                ("raw SQL in bundles of", "records/s", "connections"),
                [
                    (size, line["rate"], line["connections"])
                    for size, line in found["ceiling"].items()
                ],
            ),
        ],
    )


def before(found: Found) -> Section:
    """The engine beside itself."""
    return Section(
        "Full load beside an earlier engine",
        [Ratio(f"now / commit {found['commit'][:7]}", found["ratio"])],
        [
            Table(
                ("pair", "then, records/s", "now, records/s"),
                [(number, *pair) for number, pair in enumerate(found["pairs"], 1)],
            )
        ],
    )


def instructions(found: Found) -> Section:
    """What a record takes, whatever the machine does besides."""
    return Section(
        "Instructions of a worker for each record",
        [Ratio("engine / its JSON by itself", found["ratio"])],
        [
            Table(
                ("what", "instructions", "not in 2 MB of cache"),
                [
                    (name, round(found[name]["instructions"]), round(found[name]["misses"]))
                    for name in ("engine", "json")
                ],
            )
        ],
    )


def latency(found: Found) -> Section:
    """One record alone."""
    return Section(
        "One record alone, arrival to durable",
        [Ratio("p50, engine / raw one-record commit", found["ratio_p50"])],
        [
            Table(
                ("what", "p50, ms", "p95, ms", "p99, ms"),
                [
                    (name, *(found[name][f"p{cut}_ms"] for cut in (50, 95, 99)))
                    for name in ("engine", "raw")
                ],
            )
        ],
    )


def commits(found: Found) -> Section:
    """What a commit costs by its size."""
    lines = found["commits"]
    bare = lines[0]["ms"]
    one = next(line for line in lines if line["form"] == "JSON")
    return Section(
        "What a commit costs by its size",
        [Ratio("a commit of one record / a bare SELECT 1", one["ms"] / bare)],
        [
            Table(
                ("rows as", "records", "ms", "client CPU, us", "server CPU, us"),
                [
                    tuple(line[key] for key in ("form", "records", "ms", "client_us", "server_us"))
                    for line in lines
                ],
            )
        ],
    )


def cells(found: Found) -> Section:
    """The four guarantees."""
    raw = found["raw commit"]
    return Section(
        "Weak or strong, exactly once or not: latency between two workers",
        [
            Ratio("p50, both on / both off", found["on / off"]["p50"], "the paper: 9.4"),
            Ratio("p95, both on / both off", found["on / off"]["p95"], "the paper: 3.1"),
            *(
                Ratio(
                    f"{row['cell']}, {row['stages']} stages, {row['load']} load: p50 a stage / raw "
                    "commit",
                    row["p50 of raw, per stage"],
                )
                for row in found["cells"]
            ),
        ],
        [
            Table(
                ("cell", "stages", "load", "p50, ms", "p95, ms", "p99, ms"),
                [
                    ("raw commit", "", load, one["p50"], one["p95"], one["p99"])
                    for load, one in raw.items()
                ]
                + [
                    (row["cell"], row["stages"], row["load"], row["p50"], row["p95"], row["p99"])
                    for row in found["cells"]
                ],
            )
        ],
    )


def slow(found: Found) -> Section:
    """What slowness costs."""
    sink = found["slow sink"]
    return Section(
        "What slowness costs",
        [
            Ratio("p50 of other keys' rows, with one slow key / without", found["ratio_p50"]),
            Ratio("times each record is sent while a sink is ten times as slow", sink["ratio"]),
        ],
        [
            Table(
                ("rows of other keys", "p50, ms", "p99, ms", "most un-ACKed rows"),
                [
                    (
                        name,
                        *(found[name][key] for key in ("p50_ms", "p99_ms", "most_unacked_rows")),
                    )
                    for name in ("plain", "slow key")
                ],
            )
        ],
    )


def snapshot(found: Found) -> Section:
    """A held snapshot."""
    seconds = found["seconds"]
    lines, first = [], 0
    for name in ("before", "held", "after"):
        ys = seconds[name]
        lines.append(Line(name, list(range(first, first + len(ys))), ys))
        first += len(ys)
    return Section(
        f"Full load while a snapshot is held for {found['seconds_held']} s",
        [
            Ratio("rate while held / before", found["ratio"], "at least 0.9"),
            Ratio("rate in the last fifth of it / before", found["ratio_at_end"], "at least 0.9"),
            Ratio(
                "rate in the second half of what came after / before", found["ratio_after"], "1.0"
            ),
            Ratio("seconds until it is back", found["recovered_seconds"], "at most 60"),
        ],
        [
            Table(
                ("part", "records/s"),
                [(name, found[name]) for name in ("before", "held", "after")],
            )
        ],
        [Chart("snapshot", "Rate around a held snapshot", "seconds", "records/s", lines)],
    )


def memory(found: Found) -> Section:
    """A long run's memory."""
    samples = found["samples"]
    line = Line("worker", [100 * share for share, _ in samples], [size for _, size in samples])
    return Section(
        f"Memory of a long run: the year of flights, {found['times']} times over",
        [Ratio("resident memory at the end / after a quarter", found["ratio"], "about 1")],
        [
            Table(
                ("at", "MB"),
                [("25 %", found["megabytes_at_25"]), ("100 %", found["megabytes_at_100"])],
            )
        ],
        [Chart("memory", "Memory of a long run", "part of the input, %", "resident, MB", [line])],
    )


def timers(found: Found) -> Section:
    """Many pending timers and a takeover."""
    return Section(
        f"{found['timers']:,} pending timers",
        [Ratio("first record of a takeover, with all / with few", found["first_record_ratio"])],
        [
            Table(
                ("what", "found"),
                [
                    ("more memory than with few, MB", found["growth_megabytes"]),
                    ("first record of a takeover after, s", found["first_record_seconds"]),
                ],
            )
        ],
    )


def hot(found: Found) -> Section:
    """A hot key in one worker."""
    return Section(
        "A key with 90 % of the traffic, one worker",
        [Ratio("rate in two phases / in one", found["ratio"])],
        [Table(("one phase, records/s", "two phases, records/s"), found["pairs"])],
    )


def lag(found: Found) -> Section:
    """The low watermark's lag."""
    return Section(
        "Low watermark, from the injector to the last of ten stages",
        [
            Ratio("idle, ten stages / ten raw commits", found["idle_ratio"]),
            Ratio("loaded, the slowest stage / a bundle", found["stage_ratio"]),
        ],
        [
            Table(
                ("what", "ms"),
                [("idle, all stages, p50", found["idle_ms"]), ("a bundle", found["bundle_ms"])]
                + [(f"stage {n}", ms) for n, ms in enumerate(found["stage_ms"], 1)],
            )
        ],
    )


def workers(found: Found) -> Section:
    """Several workers."""
    return Section(
        "Several worker processes on one machine",
        [
            Ratio("rate, two workers / one", found["ratio"]),
            Ratio("a hot key in two workers, two phases / one", found["hot_ratio"]),
            Ratio("median latency, four workers / one", found["latency_ratio"]),
        ],
        [
            Table(
                ("workers", "records/s", "Python, cores", "Postgres, cores"),
                [
                    (n, one["per_second"], one["python"], one["postgres"])
                    for n, one in found["rate"].items()
                ],
            ),
            Table(
                ("workers", "p50, ms", "p99, ms", "bare commits beside, p50", "p99"),
                [
                    (n, *(one[name] for name in ("p50", "p99", "bare_p50", "bare_p99")))
                    for n, one in found["latency"].items()
                ],
            ),
        ],
    )


def takeover(found: Found) -> Section:
    """Takeovers and moves."""
    sizes = list(found["takeover"])
    return Section(
        "Takeover of a killed worker, and intervals that move",
        [Ratio(f"takeover at {sizes[-1]} MB / at {sizes[0]} MB of state", found["ratio"])],
        [
            Table(
                ("state, MB", "end of the lease to records, s"),
                list(found["takeover"].items()),
            ),
            Table(
                ("move", "longest pause, s"),
                [(what, max(each)) for what, each in found["move"].items()],
            ),
        ],
    )


def trees(found: Found) -> Section:
    """Chain and tree acknowledgement."""
    return Section(
        "Acknowledgement by chain and by tree",
        [
            Ratio(
                f"bytes kept a root, tree / chain, depth {line['depth']}, fan-out {line['fan_out']}",
                line["tree"]["bytes_per_root"] / line["chain"]["bytes_per_root"],
            )
            for line in found
            if line["chain"]["bytes_per_root"]
        ],
        [
            Table(
                ("depth", "fan-out", "chain, bytes a root", "tree, bytes a root"),
                [
                    (
                        line["depth"],
                        line["fan_out"],
                        line["chain"]["bytes_per_root"],
                        line["tree"]["bytes_per_root"],
                    )
                    for line in found
                ],
            )
        ],
    )
