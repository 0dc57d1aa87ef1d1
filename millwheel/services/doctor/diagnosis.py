"""All checks in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from millwheel import __version__
from millwheel.errors import MillwheelError
from millwheel.pipeline import Pipeline
from millwheel.services.doctor import machine_checks, pipeline_checks, store_checks
from millwheel.services.doctor.findings import Finding, missing, ok
from millwheel.services.doctor.store_checks import Wanted
from millwheel.store.address import StoreAddress

CODE = "a worker imports it, and runs its graph"


@dataclass(frozen=True)
class PlannedWorkers:
    """The number and the options of the workers that are to run."""

    number: int = 1
    listen: str | None = None
    http: str | None = None
    ingest: str | None = None


def diagnose(
    address: StoreAddress, load: Callable[[], Pipeline] | str | None, workers: PlannedWorkers
) -> Iterator[Finding]:
    """Each finding as soon as it is known.

    Args:
        load: imports the pipeline, or is its name; None: any pipeline.
    """
    pipeline: Pipeline | None = None
    name = load if isinstance(load, str) else None
    if callable(load):
        try:
            pipeline = load()
            nodes = len(list(pipeline.graph().nodes))
            yield ok("pipeline", f"{pipeline.name}: a graph of {nodes} steps", CODE)
            name = pipeline.name
        except MillwheelError as error:
            yield missing("pipeline", str(error), CODE, exit_code=error.exit_code)
    ingest = workers.ingest is not None
    yield from store_checks.store(address, Wanted(name, workers.number, ingest=ingest))
    if pipeline is not None:
        yield from pipeline_checks.sources(pipeline)
        yield from pipeline_checks.sinks(pipeline)
    needed = {} if pipeline is None else pipeline_checks.extras(pipeline)
    if ingest:
        needed["http"] = "--ingest is a web server"
    yield from machine_checks.machine(__version__, needed)
    for option, given in (
        ("--listen", workers.listen),
        ("--http", workers.http),
        ("--ingest", workers.ingest),
    ):
        if given is not None:
            yield machine_checks.port(option, given)
