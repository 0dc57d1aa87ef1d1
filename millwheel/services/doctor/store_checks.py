"""A store: its address, its server or directory, and the schemas of its pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from millwheel.errors import MillwheelError, SchemaBehind, StoreError
from millwheel.services.doctor import server_checks
from millwheel.services.doctor.findings import Finding, missing, ok, warning
from millwheel.services.doctor.machine_checks import disk, writable
from millwheel.services.doctor.providers import Provider, recognised
from millwheel.services.doctor.reaching import WHY, unreached
from millwheel.store import embedded
from millwheel.store.address import StoreAddress
from millwheel.store.console.examination import Examination, ServerFacts, Unreached, examination
from millwheel.store.console.migrate import HEAD, migrate_command
from millwheel.store.console.presence import present

SCHEMA = "tables and statements belong together"


@dataclass(frozen=True)
class Wanted:
    """What is to run on the store."""

    pipeline: str | None = None
    workers: int = 1
    ingest: bool = False


def store(address: StoreAddress, wanted: Wanted) -> Iterator[Finding]:
    if address.directory is not None:
        yield from _directory(address, address.directory, wanted)
        return
    assert address.url is not None
    yield from _server(address, address.url, wanted)


def _directory(address: StoreAddress, directory: Path, wanted: Wanted) -> Iterator[Finding]:
    why = "the data of an embedded store is there"
    try:
        state = embedded.status(directory).state
        if state == "absent":
            yield from _no_store_yet(directory)
            return
        yield disk(directory, "disk", why)
        with present(address) as presence:
            yield from _server(address, presence.url, wanted)
    except MillwheelError as error:
        yield missing("store", str(error), why, exit_code=error.exit_code)


def _no_store_yet(directory: Path) -> Iterator[Finding]:
    why = "the data of an embedded store is there"
    if not writable(directory):
        yield missing("store", f"{directory} cannot be made by this login", why, "another --store")
        return
    yield ok("store", f"there is none in {directory} yet: `millwheel run` makes it", why)
    yield disk(directory, "disk", why)
    try:
        found = embedded.programs(directory)
        yield ok("Postgres", f"{found.version} ({found.directory})", "an embedded store runs it")
    except StoreError as error:
        first, *rest = [line.strip() for line in str(error).splitlines()]
        yield missing("Postgres", first, "an embedded store runs it", *rest)


def _server(address: StoreAddress, url: str, wanted: Wanted) -> Iterator[Finding]:
    with examination(url) as found:
        if isinstance(found, Unreached):
            yield unreached(found)
            return
        where = found.host if found.host.startswith("/") else f"{found.host}:{found.port}"
        milliseconds = 1000 * found.connected_seconds
        yield ok("server", f"{where}, connected in {milliseconds:.0f} ms", WHY)
        try:
            version = server_checks.version(found.version_number, found.version)
            yield version
            if version.state != "missing":
                yield from _examined(address, found, wanted)
        except StoreError as error:
            yield missing("server", f"it broke off the examination: {error}", WHY, "try again")


def _examined(address: StoreAddress, found: Examination, wanted: Wanted) -> Iterator[Finding]:
    facts = found.facts()
    provider = recognised(facts, found.host)
    yield ok("provider", provider.title, "how a setting is made differs between services")
    yield server_checks.encrypted(found.encryption(), facts, provider)
    yield server_checks.primary(facts)
    if facts.is_standby:  # the settings of the primary may differ
        return
    if found.shared is not None:
        yield server_checks.shared(provider)
    elif found.proven is not None:
        pooled = found.proven.is_pooled
        yield from server_checks.session_kept(found.session_trial(), pooled=pooled)
    yield server_checks.encoding(facts)
    yield from server_checks.settings(facts)
    if found.shared is None:  # the setting of a shared session would reach other clients
        yield from server_checks.durability(found.durability(), facts, provider)
    yield from server_checks.connections(facts, provider, wanted.workers, ingest=wanted.ingest)
    yield server_checks.clock(found.clock())
    yield server_checks.commit_latency(found.commit_times())
    rights = list(_rights(found, facts, provider, wanted.pipeline))
    yield from rights
    if all(each.state == "ok" for each in rights):
        yield from _schemas(address, found, wanted.pipeline)


def _rights(
    found: Examination, facts: ServerFacts, provider: Provider, pipeline: str | None
) -> Iterator[Finding]:
    if found.shared is not None:
        return
    exists = pipeline if pipeline is not None and found.has_schema(pipeline) else None
    problems = found.rights_trial(exists)
    yield server_checks.rights(problems, facts, provider, pipeline, exists)
    if exists is not None and not problems and found.has_tables(exists):
        yield server_checks.worker_rights(found.lacking_in(exists), facts, exists)


def _schemas(address: StoreAddress, found: Examination, pipeline: str | None) -> Iterator[Finding]:
    for name in found.pipelines() if pipeline is None else [pipeline]:
        yield _schema(address, name, found.schema_version(name), is_wanted=pipeline is not None)


def _schema(address: StoreAddress, name: str, version: str | None, *, is_wanted: bool) -> Finding:
    command = migrate_command(name, address)
    if version == HEAD:
        return ok("schema", f"{name} is at version {HEAD}", SCHEMA)
    if version is None:
        if address.embedded:
            return ok("schema", f"{name} has none yet: `millwheel run` makes it", SCHEMA)
        text = f"{name} has none yet"
    elif version > HEAD:
        return missing(
            "schema",
            f"{name} is at version {version}, and this code knows versions up to {HEAD}",
            SCHEMA,
            "install the millwheel that made it, or a newer one",
        )
    elif address.embedded:
        return ok("schema", f"{name} is at version {version}: `millwheel run` upgrades it", SCHEMA)
    else:
        text = f"{name} is at version {version}, and this code needs {HEAD}"
    if not is_wanted:
        return warning("schema", text, SCHEMA, command)
    return missing("schema", text, SCHEMA, command, exit_code=SchemaBehind.exit_code)
