"""Compare each peer with millwheel: rate in alternating pairs, and latency at the same moderate
load."""

from __future__ import annotations

import asyncio
import os
import statistics
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.peers import answers
from bench.peers.catalogue import MILLWHEEL, MILLWHEEL_ON_TOPICS, PEERS, Peer
from bench.peers.environments import NotInstalled, python_of
from bench.peers.on_topics import bare_transactions
from bench.peers.running import Failed, Run, Task, run
from bench.workload import payments_file
from millwheel import Settings

BATCH = Settings().bundle_records
WARM = 10_000
LEAST_RECORDS = 1_000
WARM_ON_TOPICS = 200
LOAD_ON_TOPICS = 50.0
"""Records per second for latencies from topic to topic."""
LOAD = 200.0
"""Records per second for latencies; both engines sustain it easily."""


def chosen(names: list[str] | None, kafka: str | None) -> list[Peer]:
    """Select peers by program or `program-setting`: with a broker those on topics, otherwise those
    on files."""
    return [
        peer
        for peer in PEERS
        if peer.on_topics == (kafka is not None)
        and (not names or peer.program in names or f"{peer.program}-{peer.setting}" in names)
    ]


def task(path: Path, url: str, records: int, share: float, kafka: str | None) -> Task:
    """Create the task for a share of the input, with a tenth of it or less as warm-up."""
    part = max(LEAST_RECORDS, int(records * share))
    return Task(path, part, min(WARM, part // 10), BATCH, os.cpu_count() or 1, url, kafka)


def line(peer: Peer, pairs: list[tuple[Run, Run]]) -> dict[str, Any]:
    """Compute a peer's line of the table from pairs of its runs and millwheel's."""
    return {
        "peer": peer.name,
        "setting": peer.setting,
        "durability": peer.durability,
        "between": "topics" if peer.on_topics else "files",
        "records": pairs[0][0].records,
        "rate": statistics.median(its.rate for its, _ in pairs),
        "ratio": statistics.median(its.rate / ours.rate for its, ours in pairs),
        "cpu_micros": statistics.median(its.cpu_micros for its, _ in pairs),
        "megabytes": max(its.megabytes for its, _ in pairs),
        "millwheel": statistics.median(ours.rate for _, ours in pairs),
        "millwheel_cpu_micros": statistics.median(ours.cpu_micros for _, ours in pairs),
        "pairs": [(its.rate, ours.rate) for its, ours in pairs],
    }


def pairs(
    peer: Peer, url: str, directory: Path, *, number: int, records: int, kafka: str | None
) -> list[tuple[Run, Run]]:
    """Run a peer and millwheel alternately; each is first in every second pair."""
    path = directory / f"payments-{records}.jsonl"
    reference = MILLWHEEL_ON_TOPICS if peer.on_topics else MILLWHEEL
    tasks = {it: task(path, url, records, it.share, kafka) for it in (peer, reference)}
    right = {it: answers.expected(path, tasks[it].records) for it in tasks}
    # A program may read its input to the end, so its share of the input is a separate file.
    for it in tasks:
        tasks[it] = replace(tasks[it], input=first_lines(path, tasks[it].records))
    found = []
    for turn in range(number):
        order = (reference, peer) if turn % 2 == 0 else (peer, reference)
        runs = {it: run(it, tasks[it], directory, right[it]) for it in order}
        found.append((runs[peer], runs[reference]))
    return found


def first_lines(path: Path, count: int) -> Path:
    """Create a file with the first lines of another."""
    part = path.with_name(f"{path.stem}-first-{count}.jsonl")
    if not part.exists():
        with path.open("rb") as lines, part.open("wb") as file:
            file.writelines(text for _, text in zip(range(count), lines, strict=False))
    return part


def rates(
    url: str, directory: Path, peers: list[Peer], *, number: int, records: int, kafka: str | None
) -> list[dict[str, Any]]:
    """Measure a line for each peer; the line of a failed peer has the reason."""
    payments_file(directory, records)
    found = []
    for peer in peers:
        try:
            made = line(
                peer,
                pairs(peer, url, directory, number=number, records=records, kafka=kafka),
            )
        except (Failed, NotInstalled, answers.WrongAnswer) as error:
            made = {"peer": peer.name, "setting": peer.setting, "durability": peer.durability,
                    "failed": f"{type(error).__name__}: {error}"}  # fmt: skip
            print(f"  {peer.label}: {made['failed'][:1500]}")
        else:
            print(
                f"  {peer.label}: {made['rate']:9,.0f} records/s = {made['ratio']:.2f} of "
                f"millwheel's {made['millwheel']:,.0f}; CPU {made['cpu_micros']:.0f} us per "
                f"record (millwheel {made['millwheel_cpu_micros']:.0f}); {made['durability']}"
            )
        found.append(made)
    return found


def percentiles(milliseconds: list[float]) -> dict[str, float]:
    """Compute percentiles of the latencies after the first tenth."""
    kept = milliseconds[len(milliseconds) // 10 :]
    cuts = statistics.quantiles(kept, n=100)
    return {"p50_ms": cuts[49], "p95_ms": cuts[94], "p99_ms": cuts[98], "records": len(kept)}


def latencies(url: str, directory: Path, *, rounds: int, seconds: float) -> dict[str, Any]:
    """Measure latencies of Spark and millwheel alternately, from arrival to durable output."""
    spark = next(peer for peer in PEERS if peer.program == "spark")
    records = WARM + int(LOAD * seconds)
    path = directory / f"payments-{records}.jsonl"
    payments_file(directory, records)
    right = answers.expected(path, records)
    job = replace(task(path, url, records, 1.0, None), warm=WARM, rate=LOAD)
    found: dict[str, list[dict[str, float]]] = {"millwheel": [], "Spark": []}
    for _ in range(rounds):
        for peer in (MILLWHEEL, spark):
            made = run(replace(peer, setting="latency"), job, directory, right).latencies
            assert made is not None
            found[peer.name].append(percentiles(made))
    medians = {
        name: {key: statistics.median(one[key] for one in rounds_) for key in rounds_[0]}
        for name, rounds_ in found.items()
    }
    ratio = medians["Spark"]["p50_ms"] / medians["millwheel"]["p50_ms"]
    for name, figures in medians.items():
        print(
            f"  {name}, {LOAD:.0f} records/s, arrival to durable output: p50 "
            f"{figures['p50_ms']:.1f} ms, p95 {figures['p95_ms']:.1f}, p99 {figures['p99_ms']:.1f}"
        )
    print(f"  median latency, Spark / millwheel = {ratio:.1f}")
    return {"load": LOAD, **medians, "ratio_p50": ratio}


def latencies_on_topics(
    url: str, directory: Path, peers: list[Peer], kafka: str, *, rounds: int, seconds: float
) -> dict[str, Any]:
    """Measure latencies from topic to topic alternately, and of transactions of one record."""
    records = WARM_ON_TOPICS + int(LOAD_ON_TOPICS * seconds)
    path = directory / f"payments-{records}.jsonl"
    payments_file(directory, records)
    right = answers.expected(path, records)
    job = replace(
        task(path, url, records, 1.0, kafka),
        records=records,
        warm=WARM_ON_TOPICS,
        rate=LOAD_ON_TOPICS,
    )
    programs = {
        peer.program: replace(peer, setting="latency") for peer in (MILLWHEEL_ON_TOPICS, *peers)
    }
    found: dict[str, list[dict[str, float]]] = {}
    failed: dict[str, str] = {}
    for _ in range(rounds):
        with ThreadPoolExecutor(1) as pool:
            bare = pool.submit(asyncio.run, bare_transactions(kafka, 200)).result()
        found.setdefault("a transaction of one record", []).append(percentiles(bare))
        for peer in programs.values():
            if peer.name in failed:
                continue
            try:
                made = run(peer, job, directory, right).latencies
            except (Failed, NotInstalled, answers.WrongAnswer) as error:
                failed[peer.name] = f"{type(error).__name__}: {error}"
                print(f"  {peer.label}: {failed[peer.name][:1500]}")
                continue
            assert made is not None
            found.setdefault(peer.name, []).append(percentiles(made))
    medians = {
        name: {key: statistics.median(one[key] for one in rounds_) for key in rounds_[0]}
        for name, rounds_ in found.items()
    }
    for name, figures in medians.items():
        print(
            f"  {name}, {LOAD_ON_TOPICS:.0f} records/s, written to readable: p50 "
            f"{figures['p50_ms']:.1f} ms, p95 {figures['p95_ms']:.1f}, p99 "
            f"{figures['p99_ms']:.1f}"
        )
    return {"load": LOAD_ON_TOPICS, "medians": medians, "failed": failed}


def measure(
    url: str, directory: Path, *, quick: bool, names: list[str] | None, kafka: str | None
) -> dict[str, Any]:
    """Measure the rates of the selected peers, and latencies if Spark is among them."""
    peers = chosen(names, kafka)
    for name in sorted({peer.environment for peer in peers if peer.environment}):
        try:
            python_of(name)
        except NotInstalled as error:
            print(f"  {name} is not installed: {error}")
    found: dict[str, Any] = {
        "batch": BATCH,
        "rates": rates(
            url, directory, peers,
            number=1 if quick else 5, records=50_000 if quick else 300_000, kafka=kafka,
        ),
    }  # fmt: skip
    if any(peer.program == "spark" for peer in peers):
        try:
            found["latency"] = latencies(
                url, directory, rounds=1 if quick else 3, seconds=15 if quick else 60
            )
        except (Failed, NotInstalled, answers.WrongAnswer) as error:
            found["latency"] = {"failed": f"{type(error).__name__}: {error}"}
            print(f"  latency: {found['latency']['failed'][:1500]}")
    if kafka is None:
        found["not_run"] = "Those that work from topic to topic were not run (--kafka)"
        print(f"  {found['not_run']}")
    else:
        found["latency_on_topics"] = latencies_on_topics(
            url, directory, peers, kafka, rounds=1 if quick else 3, seconds=10 if quick else 40
        )
    return found
