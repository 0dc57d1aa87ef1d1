"""Why a server cannot be reached, and the remedy: by libpq's text, which is the same on all
systems."""

from __future__ import annotations

import re
from collections.abc import Callable

from millwheel.services.doctor.findings import Finding, missing
from millwheel.services.doctor.providers import PROVIDERS, by_host
from millwheel.store.console.examination import Unreached, remedy

WHY = "all durable data of a pipeline is in Postgres"

Remedies = Callable[[Unreached], tuple[str, ...]]


def _password(at: Unreached) -> tuple[str, ...]:
    if at.has_password:
        return (
            "correct the password, of --store or MILLWHEEL_STORE, else of PGPASSWORD; in a URL "
            "write its : / @ ? # % as %3A %2F %40 %3F %23 %25",
            f"correct the user: there may be no login {at.login}, which gives the same error",
        )
    return (
        "set PGPASSWORD, or PGPASSFILE with a line "
        f"{at.host}:{at.port}:{at.database}:{at.login}:PASSWORD (mode 600)",
    )


def _network(at: Unreached) -> tuple[str, ...]:
    provider = by_host(at.host) or PROVIDERS["plain"]
    return (
        f"open the way: {provider.network}",
        f"try it from here: pg_isready -h {at.host} -p {at.port}",
    )


def _no_entry(at: Unreached) -> tuple[str, ...]:
    lines = [
        f"in pg_hba.conf of the server: hostssl {at.database} {at.login} ADDRESS/32 scram-sha-256",
    ]
    if "no encryption" in at.text or "SSL off" in at.text:
        lines.insert(0, "if the server asks for TLS, add sslmode=require to the address")
    return tuple(lines)


CAUSES: tuple[tuple[str, str, Remedies], ...] = (
    (
        r"could not translate host name|Name or service not known|nodename nor servname",
        "there is no host of this name",
        lambda at: (f"correct the host {at.host} in --store or MILLWHEEL_STORE",),
    ),
    (
        r"Connection refused",
        "no server listens there",
        lambda at: ("start the server", "correct host and port", *_network(at)[1:]),
    ),
    (
        r"invalid response to SSL negotiation|expected authentication request|"
        r"server closed the connection unexpectedly",
        "no Postgres answers there, but another program",
        lambda at: ("correct host and port", *_network(at)[1:]),
    ),
    (
        r"timeout expired|timed out|No route to host|Network is unreachable",
        "nothing answers there",
        _network,
    ),
    (
        r"No such file or directory",
        "no server has its socket there",
        lambda _: ("start the server, or give its host and port: postgresql://USER@HOST/DATABASE",),
    ),
    (
        r"password authentication failed|SCRAM exchange|Wrong password|SASL authentication failed",
        "the password is wrong",
        _password,
    ),
    (r"no password supplied", "the server asks for a password, and none is given", _password),
    (r"no pg_hba\.conf entry", "the server lets this login not in from here", _no_entry),
    (
        r"server does not support SSL",
        "the server has no TLS, and the address demands it",
        lambda at: (
            "on the server: ssl = on, with ssl_cert_file and ssl_key_file in postgresql.conf",
            "only on a network that you trust: leave sslmode out of the address",
        ),
    ),
    (
        r"certificate verify failed|root certificate file|does not match host name",
        "the server's certificate is not trusted here",
        lambda at: (f"add {(by_host(at.host) or PROVIDERS['plain']).authority}",),
    ),
    (
        r'database "[^"]*" does not exist',
        "there is no such database",
        lambda at: (remedy("add_database", database=at.database),),
    ),
    (
        r'role "[^"]*" does not exist',
        "there is no such login",
        lambda at: (remedy("add_login", role=at.login, value="…"),),
    ),
    (
        r"permission denied for database",
        "the login may not connect to this database",
        lambda at: (remedy("allow_connecting", database=at.database, role=at.login),),
    ),
    (
        r"too many clients|too many connections|remaining connection slots",
        "all connections of the server are in use",
        lambda _: (
            "close other programs' connections, or raise max_connections and restart the server",
        ),
    ),
    (
        r"starting up|shutting down|in recovery mode|not yet accepting",
        "the server is starting or stopping",
        lambda _: ("wait for it; its log says how far it is",),
    ),
    (
        r"Tenant or user not found",
        "the pooler does not know this project",
        lambda _: ("Supabase's poolers take the user postgres.REF, with the project's reference",),
    ),
    (
        r"[Ee]ndpoint ID is not specified",
        "Neon does not know the endpoint",
        lambda at: (f"add options=endpoint%3D{at.host.partition('.')[0]} to the address",),
    ),
    (
        r"startup parameter|command-line options",
        "a pooler refuses the `options` of the address",
        lambda _: ("leave `options` out of the address, and of PGOPTIONS",),
    ),
    (
        r"no session of Postgres within",
        "a pooler has no free session",
        lambda _: ("give its pool (default_pool_size) eight sessions for each worker",),
    ),
)


UNKNOWN: tuple[str, Remedies] = (
    "the server cannot be used",
    lambda _: ("look at the server's log",),
)


def unreached(at: Unreached) -> Finding:
    known = ((cause, given) for pattern, cause, given in CAUSES if re.search(pattern, at.text))
    cause, remedies = next(known, UNKNOWN)
    said = _last_words(at.text)
    where = f"{at.host}:{at.port}, database {at.database}, user {at.login}"
    return missing("server", f"{cause} ({where}): {said}", WHY, *remedies(at))


def _last_words(text: str) -> str:
    """libpq's own words, without the addresses before them: the first of several lines."""
    line = next((line for line in text.splitlines() if line.strip()), "")
    return re.sub(r"^.*(connection failed: |failed: |FATAL: )\s*", "", line).strip() or line
