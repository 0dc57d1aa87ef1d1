"""The facts of a server, judged without a connection."""

from __future__ import annotations

from collections.abc import Iterator

from millwheel.runtime.ownership.store_clock import CLOCK_OFF_SECONDS
from millwheel.services.doctor.findings import Finding, missing, ok, warning
from millwheel.services.doctor.providers import Provider, for_login, for_server
from millwheel.store.console.examination import (
    CommitTimes,
    Encryption,
    ServerClock,
    ServerFacts,
    SessionTrial,
    remedy,
    worker_role,
)

OLDEST = 15
NEWEST = 18
"""The major versions of Postgres that the tests run on are these two."""

CONNECTIONS = 7
"""A worker's connections, as docs/deploy counts them."""

INGEST_CONNECTIONS = 2
"""With ``--ingest``."""

SHORT_SECONDS = 60.0
"""A server-wide limit below this may end a migration, or an upkeep of large tables."""

SLOW_COMMIT_SECONDS = 0.05

TOO_WEAK = frozenset(("off", "local", "remote_write"))


def version(number: int, text: str) -> Finding:
    """`number` such as 180002."""
    major, why = number // 10_000, "statements of the engine are those of this version"
    if major < OLDEST:
        return missing(
            "version",
            f"Postgres {text}, and {OLDEST} is the oldest that works",
            why,
            f"upgrade the server to {NEWEST}: pg_upgrade, or the service's major version upgrade",
        )
    if major > NEWEST:
        return warning(
            "version",
            f"Postgres {text} is newer than {NEWEST}, the newest that was tested",
            why,
            f"try it with a copy first, or take a server of {OLDEST} to {NEWEST}",
        )
    return ok("version", f"Postgres {text}", why)


def encrypted(found: Encryption, facts: ServerFacts, provider: Provider) -> Finding:
    why = "passwords and records cross the network"
    verify = f"in the address: sslmode=verify-full and {provider.authority}"
    if found.is_local:
        how = "encrypted" if found.is_on else "not encrypted, which a local connection need not be"
        return ok("TLS", how, why)
    if not found.is_on:
        return warning("TLS", "the connection is not encrypted", why, verify)
    protocol = facts.tls or "TLS"
    if found.mode in ("verify-full", "verify-ca"):
        return ok("TLS", f"{protocol}, the server's certificate is checked ({found.mode})", why)
    return warning(
        "TLS",
        f"{protocol}, but the server's certificate is not checked (sslmode={found.mode}): another "
        "machine could take its place",
        why,
        verify,
    )


def primary(facts: ServerFacts) -> Finding:
    why = "workers commit"
    if facts.is_standby:
        return missing(
            "primary",
            "this server is a standby, which takes no writes; the rest is examined on the primary",
            why,
            "give the address of the primary (a service's writer endpoint)",
            "name all servers: postgresql://…@a,b/db?target_session_attrs=read-write",
        )
    return ok("primary", "the server takes writes", why)


def session_kept(found: SessionTrial, *, pooled: bool) -> Iterator[Finding]:
    why = "a lock of the session shows that a worker lives"
    again = "give the address of Postgres itself, or of a pooler in session mode"
    if found.keeps_lock:
        yield ok("advisory lock", "held from one transaction to the next", why)
    else:
        yield missing("advisory lock", "lost with its transaction", why, again, exit_code=2)
    why = "each commit is planned once, and run again and again"
    if found.keeps_statements:
        yield ok("prepared", "prepared statements are kept by the session", why)
    else:
        yield missing("prepared", "prepared statements are lost", why, again, exit_code=2)
    if pooled:
        yield ok(
            "pooler",
            "a connection pooler in session mode is between; its pool needs eight sessions for "
            "each worker (default_pool_size)",
            "workers rely on sessions of their own",
        )
    else:
        yield ok("pooler", "none is between", "workers rely on sessions of their own")


def shared(provider: Provider) -> Finding:
    remedies = ["PgBouncer: pool_mode = session, for this database or user, then RELOAD"]
    if provider.title == "Supabase":
        remedies = ["port 5432 in place of 6543, of the same host"]
    elif provider.title == "Neon":
        remedies = ["the host without -pooler in its first part"]
    elif provider.title.startswith("Azure"):
        remedies = ["port 5432 in place of 6432", "the parameter pgbouncer.pool_mode = SESSION"]
    return missing(
        "pooler",
        "a connection pooler in transaction or statement mode is between; commits, rights and "
        "schemas were not tried through it",
        "workers rely on sessions of their own: settings, locks, prepared statements",
        *remedies,
        "give the address of Postgres itself",
        exit_code=2,
    )


def encoding(facts: ServerFacts) -> Finding:
    why = "keys and records are any Unicode text"
    if facts.encoding == "UTF8":
        return ok("encoding", "UTF8", why)
    return missing(
        "encoding",
        f"the database {facts.database} has the encoding {facts.encoding}",
        why,
        remedy("add_database", database=f"{facts.database}_utf8") + " -- and take that one",
    )


def settings(facts: ServerFacts) -> Iterator[Finding]:
    """Settings of a new session that could stop a worker, a command or a migration."""
    read_only = facts.settings["default_transaction_read_only"]
    if read_only.value == "on":
        yield missing(
            "read only",
            f"default_transaction_read_only is on for {facts.login}",
            "workers commit",
            for_login(facts, read_only, "default_transaction_read_only", "off"),
        )
    limits = [
        ("lock_timeout", SHORT_SECONDS / 6, "a commit that waits for a lock is tried again"),
        ("statement_timeout", SHORT_SECONDS, "a migration of large tables takes its time"),
        ("transaction_timeout", SHORT_SECONDS, "a snapshot of Spark or a migration is long"),
        ("idle_session_timeout", float("inf"), "idle workers keep their sessions, and with them "
         "the lock that shows that they live"),
    ]  # fmt: skip
    short = False
    for name, least, why in limits:
        setting = facts.settings.get(name)
        if setting is None or setting.value in ("0", ""):
            continue
        seconds = int(setting.value) / 1000
        if seconds < least:
            short = True
            yield warning(
                "time limit",
                f"{name} is {seconds:g} s for {facts.login} (from: {setting.source})",
                why,
                for_login(facts, setting, name, "0"),
            )
    if not short and read_only.value != "on":
        yield ok(
            "settings",
            "no read-only default, and no limit of time that would end a worker's session or a "
            "migration",
            "workers set their own time zone, isolation and limits of statements and transactions",
        )


def durability(kept: str, facts: ServerFacts, provider: Provider) -> Iterator[Finding]:
    """`kept` is `synchronous_commit` of a worker's session."""
    why = "an acknowledged commit must survive a crash"
    setting = facts.settings["synchronous_commit"]
    if kept in TOO_WEAK:
        yield warning(
            "commits",
            f"synchronous_commit is {kept}, and a session cannot raise it",
            why,
            for_login(facts, setting, "synchronous_commit", "on"),
        )
    elif setting.value in TOO_WEAK:
        yield ok(
            "commits",
            f"synchronous_commit is {setting.value} by default, and {kept} for workers, which "
            "raise it",
            why,
        )
    else:
        yield ok("commits", f"they wait for the disk (synchronous_commit = {kept})", why)
    off = [name for name in ("fsync", "full_page_writes") if facts.settings[name].value != "on"]
    if off and not provider.own_storage:
        yield warning(
            "fsync",
            f"{' and '.join(off)}: off. A crash of the machine may destroy the database",
            why,
            " ".join(for_server(provider, name, "on", restart=False) for name in off),
        )
    elif not off:
        yield ok("fsync", "fsync and full_page_writes are on", why)
    if facts.standbys and not facts.settings["synchronous_standby_names"].value:
        yield warning(
            "standbys",
            f"{facts.standbys} of them, asynchronous: a failover loses the newest commits. Their "
            "work is done again, but what was sent elsewhere may be sent twice",
            why,
            for_server(provider, "synchronous_standby_names", "ANY 1 (*)", restart=False),
        )


def connections(
    facts: ServerFacts, provider: Provider, workers: int, *, ingest: bool
) -> Iterator[Finding]:
    each = CONNECTIONS + (INGEST_CONNECTIONS if ingest else 0)
    why = f"a worker keeps {each} for as long as it lives"
    most = _number(facts, "max_connections")
    reserved = _number(facts, "superuser_reserved_connections") + _number(
        facts, "reserved_connections"
    )
    used = facts.connections - 1
    room = {
        "server": most - reserved - used,
        "login": _room(facts.login_limit, facts.login_connections - 1),
        "database": _room(facts.database_limit, facts.database_connections - 1),
    }
    narrow = min(room, key=lambda name: room[name])
    fits = max(0, room[narrow]) // each
    found = f"{most} at most, {reserved} reserved, {used} in use"
    if narrow == "login":
        found += f"; {facts.login} may have {facts.login_limit}"
    elif narrow == "database":
        found += f"; the database may have {facts.database_limit}"
    found += f": room for {fits} more worker{'' if fits == 1 else 's'}"
    if fits >= workers:
        yield ok("connections", found, why)
        return
    more = workers * each + used + reserved
    yield missing(
        "connections",
        f"{found}, and {workers} {'is' if workers == 1 else 'are'} to run",
        why,
        {
            "server": for_server(provider, "max_connections", str(_rounded(more)), restart=True),
            "login": remedy("lift_login_limit", role=facts.login),
            "database": remedy("lift_database_limit", database=facts.database),
        }[narrow],
    )


def clock(found: ServerClock) -> Finding:
    why = "workers go by the server's clock; logs and files have this machine's"
    off = abs(found.ahead_seconds)
    where = "ahead of" if found.ahead_seconds > 0 else "behind"
    if off >= CLOCK_OFF_SECONDS:
        return warning(
            "clock",
            f"this machine's clock is {off:.1f} s {where} the server's",
            why,
            "set both by NTP: timedatectl set-ntp true",
        )
    if off <= found.uncertain_seconds:
        return ok("clock", "the same as the server's", why)
    return ok("clock", f"{1000 * off:.0f} ms {where} the server's", why)


def commit_latency(found: CommitTimes | None) -> Finding:
    why = "a record waits for about one commit at each stage; the rate hardly depends on it"
    if found is None:
        return warning("commit", "could not be measured: the server takes no note in its WAL", why)
    text = (
        f"one takes {_milliseconds(found.median)}, of which {_milliseconds(found.round_trip)} on "
        f"the way ({len(found.seconds)} took {_milliseconds(found.seconds[0])} to "
        f"{_milliseconds(found.seconds[-1])})"
    )
    if found.median < SLOW_COMMIT_SECONDS:
        return ok("commit", text, why)
    cause = "the network" if found.round_trip > found.median / 2 else "the server's disk"
    return warning(
        "commit",
        f"{text}: {cause} is slow",
        why,
        "run workers near the server"
        if cause == "the network"
        else "look at the disk's latency, and at synchronous standbys",
    )


def rights(
    problems: dict[str, str],
    facts: ServerFacts,
    provider: Provider,
    pipeline: str | None,
    exists: str | None,
) -> Finding:
    """`problems` are those of a trial in the schema `exists`, or in a new one (None)."""
    why = "each pipeline is a schema, with tables that come and go"
    name = pipeline or "PIPELINE"
    as_whom = f" -- as {provider.administrator}"
    if not problems:
        things = "tables, indexes, views and functions"
        found = f"{things} in the schema {exists}" if exists else f"schemas, with {things}"
        return ok("rights", f"{facts.login} may make {found}", why)
    if "make schemas" in problems:
        if pipeline is None and facts.open_schemas:
            listed = ", ".join(facts.open_schemas[:5])
            return ok(
                "rights",
                f"{facts.login} may make no schema, but objects in these: {listed}. A pipeline "
                "runs there if it has the name of one",
                why,
            )
        made = remedy("add_schema", schema=name)
        return missing(
            "rights",
            f"{facts.login} may make no schema ({problems['make schemas']})",
            why,
            remedy("allow_new_schemas", database=facts.database, role=facts.login) + as_whom,
            f"only for {name}: {made} " + remedy("allow_in_schema", schema=name, role=facts.login),
        )
    lacking = "; ".join(f"{right}: {problem}" for right, problem in problems.items())
    return missing(
        "rights",
        f"{facts.login} may not do all that a pipeline needs ({lacking})",
        why,
        remedy("allow_in_schema", schema=name, role=facts.login) + as_whom,
    )


def worker_rights(lacking: list[str], facts: ServerFacts, pipeline: str) -> Finding:
    why = "workers change the rows of the pipeline's tables"
    if not lacking:
        return ok("tables", f"{facts.login} may change those of {pipeline}", why)
    more = f" and {len(lacking) - 3} more" if len(lacking) > 3 else ""
    return missing(
        "tables",
        f"{facts.login} lacks rights in {pipeline}: {', '.join(lacking[:3])}{more}",
        why,
        f"millwheel migrate {pipeline} --roles, as the owner of its schema; then "
        + remedy("allow_role", granted=worker_role(facts.database, pipeline), role=facts.login),
    )


def _number(facts: ServerFacts, name: str) -> int:
    setting = facts.settings.get(name)
    return 0 if setting is None else int(setting.value)


def _room(limit: int, used: int) -> int:
    return 1 << 30 if limit < 0 else limit - used


def _rounded(number: int) -> int:
    """Up to the next multiple of 50."""
    return -(-number // 50) * 50


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.{1 if seconds >= 0.001 else 2}f} ms"
