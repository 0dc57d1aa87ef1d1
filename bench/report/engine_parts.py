"""Sections on the engine: each part with its baseline of the same run."""

from __future__ import annotations

from typing import Any

from bench.report.model import Chart, Line, Ratio, Section, Table

Found = Any
"""The results of a part, as read from JSON."""


def rate(found: Found) -> Section:
    """The engine and raw SQL."""
    return Section(
        "Full load, compared with raw SQL of the same rows",
        [
            Ratio("engine / raw SQL, bundles of 500", found["ratio"]),
            Ratio("CPU per record, engine / raw SQL", found["cpu"]),
            *_beside_rows(found),
            Ratio("raw SQL, this layout / plain rows", found["layout"]),
            Ratio("three stages / (one stage / 3)", found["stages"]),
        ],
        [
            Table(
                ("pair", "side", "records/s", "Python, us per record", "Postgres, us per record"),
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
    """The engine and an earlier version."""
    return Section(
        "Full load, compared with an earlier engine",
        [Ratio(f"now / commit {found['commit'][:7]}", found["ratio"])],
        [
            Table(
                ("pair", "then, records/s", "now, records/s"),
                [(number, *pair) for number, pair in enumerate(found["pairs"], 1)],
            )
        ],
    )


def instructions(found: Found) -> Section:
    """Instructions per record, which do not depend on other load of the machine."""
    return Section(
        "Instructions of a worker per record",
        [Ratio("engine / its JSON alone", found["ratio"])],
        [
            Table(
                ("side", "instructions", "misses in 2 MB of cache"),
                [
                    (name, round(found[name]["instructions"]), round(found[name]["misses"]))
                    for name in ("engine", "json")
                ],
            )
        ],
    )


def latency(found: Found) -> Section:
    """A single record on an idle engine."""
    return Section(
        "A single record, arrival to durable",
        [Ratio("p50, engine / raw one-record commit", found["ratio_p50"])],
        [
            Table(
                ("side", "p50, ms", "p95, ms", "p99, ms"),
                [
                    (name, *(found[name][f"p{cut}_ms"] for cut in (50, 95, 99)))
                    for name in ("engine", "raw")
                ],
            )
        ],
    )


def ingest(found: Found) -> Section:
    """Records that programs send."""
    return Section(
        "A record over HTTP and by send(), until it is durable",
        [
            Ratio("p50, POST of one client / raw one-row commit", found["post_ratio"]),
            Ratio("p50, send / raw one-row commit", found["send_ratio"]),
            Ratio("32 clients, requests / raw commits of one connection", found["requests_ratio"]),
        ],
        [
            Table(
                ("what", "p50, ms", "p99, ms"),
                [
                    (name, found["p50_ms"][name], found["p99_ms"][name])
                    for name in ("raw", "post", "send")
                ],
            )
        ],
    )


def kafka(found: Found) -> Section:
    """A topic as source and as sink."""
    return Section(
        "A Kafka topic, read and written, compared with the client alone",
        [
            Ratio("rate of reading, injector / client alone", found["read ratio"]),
            Ratio("rate of writing, sink / client alone", found["write ratio"]),
        ],
        [
            Table(
                ("what", "records/s", "CPU, us per record"),
                [
                    (name, found[name]["per_second"], found[name]["cpu_us"])
                    for name in ("read", "read bare", "write", "write bare")
                ],
            )
        ],
    )


def reader_wait(found: Found) -> Section:
    """A reader of a topic whose writer is killed."""
    lines: list[tuple[Any, ...]] = [
        (f"kills, of which {found['blocked']} met an open transaction", found["kills"]),
        (f"takeover, with a lease of {found['lease_seconds']:g} s", found["takeover_seconds"]),
    ]
    if found["blocked"]:
        lines += [
            ("pause of the reader behind an open transaction", found["pause_seconds"]),
            ("the longest pause beyond its takeover", found["beyond_seconds"]),
        ]
    return Section(
        "A reader of committed records, when a worker that writes to its topic is killed",
        [],
        [Table(("medians, seconds", "found"), lines)],
    )


def aggregates(found: Found) -> Section:
    """An aggregate by Spark that follows a live engine."""
    batch = found["batch_seconds"]
    return Section(
        "An aggregate by Spark, from a pane's commit until its group is replaced",
        [
            Ratio("half of the panes, in batches", found["delay_p50_seconds"] / batch),
            Ratio("95 of 100 panes, in batches", found["delay_p95_seconds"] / batch),
        ],
        [
            Table(
                ("seconds", "found"),
                [
                    (f"from batch to batch, of {found['batches']}", batch),
                    (f"half of {found['panes']} panes", found["delay_p50_seconds"]),
                    ("95 of 100 panes", found["delay_p95_seconds"]),
                ],
            )
        ],
    )


def on_spark(found: Found) -> Section:
    """One pipeline with the engine and on Spark."""
    lines = found["keys"]
    return Section(
        "One pipeline with the engine, and on Spark (local[2]), on the same cores",
        [Ratio(f"the engine's rate / Spark's, {line['keys']:,} keys",
               line["ratio"]) for line in lines],
        [
            Table(
                ("keys", "engine, records/s", "Spark, records/s", "s a batch", "s until moved"),
                [
                    (
                        line["keys"], line["engine_rate"], line["rate"], line["batch_seconds"],
                        line["loaded_seconds"],
                    )
                    for line in lines
                ],
            )
        ],
    )  # fmt: skip


def spark_start(found: Found) -> Section:
    """Starts of Spark, alone and on a busy machine."""
    return Section(
        "From the command `millwheel spark` to its first row",
        [Ratio("on a busy machine / alone", found["busy_seconds"] / found["seconds"])],
        [
            Table(
                ("start", "seconds"),
                [
                    ("alone", found["seconds"]),
                    (
                        (
                            f"at a load of {found['load']}: {found['busy_done']} of "
                            f"{found['busy_starts']} succeeded"
                        ),
                        found["busy_seconds"],
                    ),
                ],
            )
        ],
    )


def state_rows(found: Found) -> Section:
    """Rows of state read by Spark, beside COPY."""
    return Section(
        f"{found['rows']:,} rows of state read by Spark in two tasks, beside COPY over one "
        "connection",
        [
            Ratio("Spark's rate / COPY's", found["ratio"]),
            Ratio("a busy engine's rate meanwhile / alone", found["engine_meanwhile"]),
            Ratio("the same, `nice -n 19 millwheel spark`", found["engine_meanwhile_nice"]),
        ],
        [
            Table(
                ("way", "rows/s"),
                [
                    ("COPY", found["copy_rows_per_second"]),
                    ("Spark", found["spark_rows_per_second"]),
                ],
            )
        ],
    )


def looks(found: Found) -> Section:
    """Looks of an operator at a large store."""
    few, many, key = found["few_seconds"], found["many_seconds"], found["key_seconds"]
    return Section(
        f"Looks at {found['timers']:,} pending timers beside 1,000, and at one key of "
        f"{found['states']:,}",
        [
            Ratio("watermark_holders", found["holders_ratio"], "at most 2"),
            Ratio("millwheel status", found["status_ratio"], "at most 2"),
            Ratio("state_of / the primary key", found["key_ratio"], "at most 5"),
        ],
        [
            Table(
                ("look", "seconds"),
                [
                    ("watermark_holders, few timers", few["holders"]),
                    ("watermark_holders, many timers", many["holders"]),
                    ("status, few timers", few["status"]),
                    ("status, many timers", many["status"]),
                    ("one key by the primary key", key["primary_key"]),
                    ("one key by state_of", key["state_of"]),
                    ("one key by state get, all of it", key["state_get"]),
                ],
            )
        ],
    )


def commits(found: Found) -> Section:
    """The cost of a commit by its size."""
    lines = found["commits"]
    bare = lines[0]["ms"]
    one = next(line for line in lines if line["form"] == "JSON")
    return Section(
        "Cost of a commit by its size",
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


def _beside_rows(found: Found) -> list[Ratio]:
    """The engine beside raw SQL with a row for each id; older results are without."""
    if "ratio_rows" not in found:
        return []
    return [
        Ratio("engine / raw SQL with rows", found["ratio_rows"]),
        Ratio("CPU per record, engine / raw SQL with rows", found["cpu_rows"]),
    ]


def seen(found: Found) -> Section:
    """Numbers of seen records as runs, beside a row for each."""
    return Section(
        "The numbers of many seen records",
        [
            Ratio(f"{name}: runs / rows", found["runs"][key] / found["rows"][key])
            for name, key in (
                ("Bytes", "bytes"),
                ("Look-up of a chunk that is there", "there"),
                ("Look-up of one that is not", "missing"),
            )
        ],
        [
            Table(
                ("kept as", "bytes an id", "newest ms", "chunk there ms", "chunk missing ms"),
                [
                    (
                        name,
                        found[name]["bytes"] / found["ids"],
                        *(found[name][key] * 1e3 for key in ("newest", "there", "missing")),
                    )
                    for name in ("runs", "rows")
                ],
            )
        ],
    )


def ways(found: Found) -> Section:
    """The careful ways beside the plain one."""
    return Section(
        "Ids of users, weak productions, code that awaits, and a further stage",
        [Ratio(f"{way}: rate / plain", of["rate"]) for way, of in found.items()],
        [Table(("way", "CPU / plain"), [(way, of["cpu"]) for way, of in found.items()])],
    )


def windows(found: Found) -> Section:
    """Windows folded by chunk, beside one record at a time."""
    return Section(
        "Windows with many records of a chunk",
        [Ratio(f"{kind}: rate together / one by one", of["ratio"]) for kind, of in found.items()],
        [
            Table(
                ("windows", "records/s together", "CPU / one by one"),
                [(kind, of["rate"], of["cpu"]) for kind, of in found.items()],
            )
        ],
    )


def pages(found: Found) -> Section:
    """The pages of a large pipeline."""
    seconds = found["seconds"]
    return Section(
        "Pages of a pipeline of 60 steps with ten million timers",
        [Ratio("the slowest page, seconds", max(seconds.values()), "at most 1")],
        [Table(("page", "seconds"), list(seconds.items()))],
    )


def copies(found: Found) -> Section:
    """A fork of a large pipeline, and savepoints of it under load."""
    ready, first = found["load"]["ready"], found["load"]["first"]
    return Section(
        f"Copies of a pipeline of {found['bytes'] / 1e9:.1f} GB",
        [
            Ratio(
                "fork / CREATE TABLE AS with its indexes, seconds", found["ratio"], "at most 1.5"
            ),
            Ratio("rate during a savepoint / beside none", ready["rate_ratio"], "at least 0.8"),
            Ratio("p99 of a bundle during it / beside none", ready["p99_ratio"], "at most 2"),
            Ratio("rate, if the server has to make its WAL files", first["rate_ratio"]),
            Ratio("p99 of a bundle, if it has to", first["p99_ratio"]),
        ],
        [
            Table(
                ("fork, seconds", "savepoint under load, seconds", "records/s beside none"),
                [(found["seconds"], ready["seconds"], ready["rate"])],
            )
        ],
    )


def watched(found: Found) -> Section:
    """A pipeline with open pages beside one without."""
    return Section(
        "Three pages are open",
        [Ratio("rate with three pages / none", found["ratio"], "at least 0.98")],
        [Table(("records/s", "CPU / none"), [(found["rate"], found["cpu"])])],
    )


def queries(found: Found) -> Section:
    """Queries beside classes written by hand."""
    return Section(
        "Queries beside classes",
        [Ratio(f"{kind}: rate of the query / class", of["ratio"]) for kind, of in found.items()],
        [
            Table(
                ("query", "records/s", "CPU / class"),
                [(kind, of["rate"], of["cpu"]) for kind, of in found.items()],
            )
        ],
    )


def shares(found: Found) -> Section:
    """Cost in Postgres of each part of a record."""
    lines = found["shares"]
    return Section(
        "What Postgres pays for each part of a record",
        [
            Ratio(f"Postgres' CPU, {name} / all", of["postgres"])
            for name, of in lines.items()
            if name != "all"
        ],
        [
            Table(
                ("commits with", "rate / all", "Postgres us a record", "WAL bytes a record"),
                [
                    (name, *(of[key] for key in ("rate", "postgres_us", "wal_bytes")))
                    for name, of in lines.items()
                ],
            )
        ],
    )


def cells(found: Found) -> Section:
    """The four combinations of guarantees."""
    raw = found["raw commit"]
    return Section(
        "Weak or strong, exactly once or not: latency between two workers",
        [
            Ratio("p50, both on / both off", found["on / off"]["p50"], "the paper: 9.4"),
            Ratio("p95, both on / both off", found["on / off"]["p95"], "the paper: 3.1"),
            *(
                Ratio(
                    f"{row['cell']}, {row['stages']} stages, {row['load']} load: p50 per stage / "
                    "raw commit",
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
    """The cost of slow keys and sinks."""
    sink = found["slow sink"]
    return Section(
        "Cost of a slow key and of a slow sink",
        [
            Ratio("p50 of other keys' rows, with one slow key / without", found["ratio_p50"]),
            Ratio("sends per record while a sink is ten times as slow", sink["ratio"]),
        ],
        [
            Table(
                ("rows of other keys", "p50, ms", "p99, ms", "most unacknowledged rows"),
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
    """The effect of a held snapshot."""
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
            Ratio(
                "rate in the last fifth of the hold / before",
                found["ratio_at_end"],
                "at least 0.9",
            ),
            Ratio(
                "rate in the second half after the release / before", found["ratio_after"], "1.0"
            ),
            Ratio("seconds until the rate is back", found["recovered_seconds"], "at most 60"),
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
    """Memory of a long run."""
    samples = found["samples"]
    line = Line("worker", [100 * share for share, _ in samples], [size for _, size in samples])
    return Section(
        f"Memory of a long run: the year of flights, repeated {found['times']} times",
        [Ratio("resident memory at the end / after a quarter", found["ratio"], "about 1")],
        [
            Table(
                ("at", "MB"),
                [("25 %", found["megabytes_at_25"]), ("100 %", found["megabytes_at_100"])],
            )
        ],
        [Chart("memory", "Memory of a long run", "share of the input, %", "resident, MB", [line])],
    )


def timers(found: Found) -> Section:
    """Many pending timers and a takeover."""
    return Section(
        f"{found['timers']:,} pending timers",
        [
            Ratio(
                "time to the first record after a takeover, with all timers / with few",
                found["first_record_ratio"],
            )
        ],
        [
            Table(
                ("figure", "value"),
                [
                    ("additional memory compared with few timers, MB", found["growth_megabytes"]),
                    (
                        "time to the first record after a takeover, s",
                        found["first_record_seconds"],
                    ),
                ],
            )
        ],
    )


def parked(found: Found) -> Section:
    """Parked keys."""
    return Section(
        f"{found['parked_keys']} of {found['keys']:,} keys parked, {found['rate']:,} records/s, "
        "one worker",
        [
            Ratio("p99 of the other keys / without a failure", found["ratio_p99"]),
            Ratio("p50 of the other keys / without a failure", found["ratio_p50"]),
        ],
        [
            Table(
                ("arrival to durable", "none parked, ms", "parked, ms"),
                [(f"p{p}", found[f"none_p{p}_ms"], found[f"parked_p{p}_ms"]) for p in (50, 99)],
            )
        ],
    )


def hot(found: Found) -> Section:
    """A hot key in one worker."""
    return Section(
        "A key with 90 % of the traffic, one worker",
        [Ratio("rate with two phases / with one", found["ratio"])],
        [Table(("one phase, records/s", "two phases, records/s"), found["pairs"])],
    )


def lag(found: Found) -> Section:
    """The low watermark's lag."""
    return Section(
        "Lag of the low watermark, from the injector to the last of ten stages",
        [
            Ratio("idle, ten stages / ten raw commits", found["idle_ratio"]),
            Ratio("loaded, the slowest stage / a bundle", found["stage_ratio"]),
        ],
        [
            Table(
                ("lag", "ms"),
                [("idle, all stages, p50", found["idle_ms"]), ("a bundle", found["bundle_ms"])]
                + [(f"stage {n}", ms) for n, ms in enumerate(found["stage_ms"], 1)],
            )
        ],
    )


def workers(found: Found) -> Section:
    """Several worker processes."""
    return Section(
        "Several worker processes on one machine",
        [
            Ratio("rate, two workers / one", found["ratio"]),
            Ratio("a hot key with two workers, two phases / one", found["hot_ratio"]),
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
                (
                    "workers",
                    "p50, ms",
                    "p99, ms",
                    "bare commits, p50, ms",
                    "bare commits, p99, ms",
                ),
                [
                    (n, *(one[name] for name in ("p50", "p99", "bare_p50", "bare_p99")))
                    for n, one in found["latency"].items()
                ],
            ),
        ],
    )


def takeover(found: Found) -> Section:
    """Takeovers and moved intervals."""
    sizes = list(found["takeover"])
    return Section(
        "Takeover of a killed worker, and moved intervals",
        [Ratio(f"takeover at {sizes[-1]} MB / at {sizes[0]} MB of state", found["ratio"])],
        [
            Table(
                ("state, MB", "end of the lease to first records, s"),
                list(found["takeover"].items()),
            ),
            Table(
                ("move", "longest pause, s"),
                [(what, max(each)) for what, each in found["move"].items()],
            ),
        ],
    )


def evolving(found: Found) -> Section:
    """States migrated, and a column added, under load."""
    states, column = found["states"], found["column"]
    return Section(
        "States migrated in the background, and a column added to a table in use",
        [
            Ratio(
                "rate of a worker during a migration of states / before and after", states["ratio"]
            )
        ],
        [
            Table(
                ("figure", "value"),
                [
                    ("keys migrated", states["keys"]),
                    ("values a second, at most", states["rate"]),
                    ("time, s", states["seconds"]),
                    ("keys looked at in the view meanwhile, all right", states["keys_looked_at"]),
                    ("rows of the table", column["rows"]),
                    ("its readers' and writers' statements", column["statements"]),
                    ("the longest, s", column["longest_seconds"]),
                    ("the longest before, s", column["longest_before_seconds"]),
                    ("lock timeout of the deploy, s", column["lock_seconds"]),
                ],
            ),
        ],
    )


def kills(found: Found) -> Section:
    """How long the keys of a killed worker stand still."""
    return Section(
        "SIGKILL to the first commit of the last interval, three workers under load",
        [],
        [
            Table(
                ("figure", "value"),
                [
                    ("kills", found["kills"]),
                    ("p50, s", found["p50_seconds"]),
                    ("p95, s", found["p95_seconds"]),
                    ("longest, s", found["max_seconds"]),
                    ("sessions of heartbeats ended", found["sessions"]),
                    ("needless takeovers", found["needless"]),
                ],
            ),
        ],
    )


def trees(found: Found) -> Section:
    """Chain and tree acknowledgement."""
    return Section(
        "Acknowledgement by chain and by tree",
        [
            Ratio(
                f"bytes kept per root, tree / chain, depth {line['depth']}, fan-out "
                f"{line['fan_out']}",
                line["tree"]["bytes_per_root"] / line["chain"]["bytes_per_root"],
            )
            for line in found
            if line["chain"]["bytes_per_root"]
        ],
        [
            Table(
                ("depth", "fan-out", "chain, bytes per root", "tree, bytes per root"),
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
