"""The places that a pipeline's sources and sinks need: files, brokers, other stores, folders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from millwheel.errors import InputError, OutputError
from millwheel.files.file_sources import FilePartition, FollowedPartition, GrowingFiles
from millwheel.following.table_source import NumberedTable
from millwheel.pipeline import Pipeline
from millwheel.services.doctor.findings import Finding, missing, ok, warning
from millwheel.services.doctor.machine_checks import disk, reachable, writable
from millwheel.services.doctor.reaching import unreached
from millwheel.sinks import JsonLinesFiles
from millwheel.store.address import StoreAddress
from millwheel.store.console.examination import Unreached, examination

READ = "the pipeline reads it"
WRITTEN = "the pipeline writes there"


def sources(pipeline: Pipeline) -> Iterator[Finding]:
    for node in pipeline.graph().nodes:
        if node.injection is None:
            continue
        source: Any = node.injection.source
        if isinstance(source, NumberedTable):
            yield _followed_table(source)
        elif (cluster := getattr(source, "cluster", None)) is not None:
            yield _brokers("source", f"topic {source.topic}", cluster.bootstrap)
        elif isinstance(source, GrowingFiles):
            yield _growing(source)
        else:
            yield from _files(source)


def sinks(pipeline: Pipeline) -> Iterator[Finding]:
    for _, use in pipeline.sinks:
        sink: Any = use.sink
        if isinstance(sink, JsonLinesFiles):
            yield from _folder(sink.path)
        elif (cluster := getattr(sink, "cluster", None)) is not None:
            yield _brokers("sink", f"topic {sink.topic}", cluster.bootstrap)


def extras(pipeline: Pipeline) -> dict[str, str]:
    """The extras of millwheel that the pipeline needs, with the reasons."""
    injections = [node.injection for node in pipeline.graph().nodes if node.injection]
    needed = {}
    if any(hasattr(injection.source, "cluster") for injection in injections):
        needed["kafka"] = "the pipeline reads from Kafka"
    if any(hasattr(use.sink, "cluster") for _, use in pipeline.sinks):
        needed["kafka"] = "the pipeline writes to Kafka"
    return needed


def _files(source: Any) -> Iterator[Finding]:
    paths, absent, closed = [], [], []
    for partition in source.partitions():
        if isinstance(partition, FilePartition):
            paths.append(partition.absolute)
            if not os.path.isfile(partition.absolute):
                absent.append(partition.absolute)
        elif isinstance(partition, FollowedPartition):
            paths.append(partition.following.path)
            if not os.path.exists(partition.following.path):
                yield warning(
                    "source", f"{partition.following.path} is not there yet", READ,
                    "a followed file may appear later; if not, correct the path",
                )  # fmt: skip
    closed = [path for path in paths if os.path.exists(path) and not os.access(path, os.R_OK)]
    for found, problem in ((absent, "is not there"), (closed, "cannot be read by this login")):
        if found:
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            yield missing(
                "source", f"{found[0]} {problem}{more}", READ,
                "correct the path" if problem == "is not there" else f"chmod a+r {found[0]}",
                exit_code=InputError.exit_code,
            )  # fmt: skip
    if paths and not absent and not closed:
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        yield ok("source", f"{paths[0]}{more}", READ)


def _growing(source: Any) -> Finding:
    pattern = next(str(value) for value in source.describe().values())
    folder = Path(pattern if pattern.endswith(os.sep) else os.path.dirname(pattern))
    if folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK):
        return missing(
            "source", f"the directory {folder} cannot be read by this login", READ,
            f"chmod a+rx {folder}", exit_code=InputError.exit_code,
        )  # fmt: skip
    if not folder.is_dir() and "*" not in str(folder):
        return warning("source", f"there is no directory {folder} yet", READ, f"mkdir -p {folder}")
    return ok("source", f"files of {pattern}", READ)


def _brokers(check: str, what: str, bootstrap: str) -> Finding:
    problems = {place.strip(): reachable(place) for place in bootstrap.split(",")}
    reached = [place for place, problem in problems.items() if not problem]
    why = READ if check == "source" else WRITTEN
    if reached:
        return ok(check, f"{what}: {reached[0]} answers", why)
    said = "; ".join(f"{place}: {problem}" for place, problem in problems.items())
    return missing(
        check, f"{what}: no broker answers ({said})", why,
        "start the brokers, or correct KafkaCluster(...)",
        exit_code=InputError.exit_code if check == "source" else OutputError.exit_code,
    )  # fmt: skip


def _followed_table(source: NumberedTable[Any]) -> Finding:
    where = StoreAddress(url=source.url).redacted()
    with examination(source.url) as found:
        if isinstance(found, Unreached):
            at = unreached(found)
            return missing(
                "source", f"{source.table} of {source.pipeline} in {where}: {at.found}", READ,
                *at.remedy, exit_code=InputError.exit_code,
            )  # fmt: skip
    return ok("source", f"{source.table} of {source.pipeline} in {where}", READ)


def _folder(path: Path) -> Iterator[Finding]:
    if path.exists() and not path.is_dir():
        found, remedy = f"{path} is no directory", "remove it, or give another directory"
    elif not writable(path):
        found, remedy = f"{path} cannot be written by this login", f"chown -R WORKER {path}"
    else:
        yield disk(path, "sink", WRITTEN)
        return
    yield missing("sink", found, WRITTEN, remedy, exit_code=OutputError.exit_code)
