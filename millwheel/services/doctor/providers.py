"""Managed Postgres services: how each is recognised, and how a parameter is set there."""

from __future__ import annotations

import re
from dataclasses import dataclass

from millwheel.store.console.examination import ServerFacts, ServerSetting, remedy

BY_HOST = (
    (r"\.proxy-[a-z0-9]+\..+\.rds\.amazonaws\.com", "rds"),
    (r"\.cluster-(ro-|custom-)?[a-z0-9]+\..+\.rds\.amazonaws\.com", "aurora"),
    (r"\.rds\.amazonaws\.com", "rds"),
    (r"\.postgres\.database\.azure\.com", "azure"),
    (r"^/cloudsql/", "cloudsql"),
    (r"\.supabase\.(co|com|net)$", "supabase"),
    (r"\.neon\.(tech|build)$", "neon"),
)
"""Names of hosts, in order."""

BY_PARAMETER = (
    ("aurora", r"^(aurora|apg)[._]"),
    ("supabase", r"^(supabase|supautils)\."),
    ("neon", r"^neon\."),
    ("cloudsql", r"^cloudsql\."),
    ("azure", r"^azure\."),
    ("rds", r"^rds\."),
)
BY_ROLE = {
    "supabase_admin": "supabase",
    "neon_superuser": "neon",
    "cloudsqlsuperuser": "cloudsql",
    "azure_pg_admin": "azure",
    "rds_superuser": "rds",
}


@dataclass(frozen=True)
class Provider:
    title: str
    administrator: str
    """The login that may give rights."""
    server_parameter: str
    """How to set a parameter of the server: ``{name}``, ``{value}``. Empty: as SQL."""
    network: str
    """The usual reason why the port does not answer."""
    authority: str = "sslrootcert=system, or the file of your authority"
    """The certificates to check the server's with."""
    own_storage: bool = False
    """Pages and WAL are kept by a storage service, so `fsync` and `full_page_writes` say nothing
    about durability."""


PROVIDERS = {
    "plain": Provider(
        "plain Postgres",
        "a superuser or the database's owner",
        "",
        "a firewall between, or `listen_addresses` of the server",
    ),
    "rds": Provider(
        "Amazon RDS",
        "the master user (rds_superuser)",
        "in the instance's parameter group: aws rds modify-db-parameter-group "
        "--db-parameter-group-name GROUP --parameters "
        "ParameterName={name},ParameterValue={value},ApplyMethod=pending-reboot, then reboot",
        "the security group: allow TCP 5432 from this machine, and 'publicly accessible' outside "
        "of the VPC",
        "sslrootcert=global-bundle.pem (from truststore.pki.rds.amazonaws.com)",
    ),
    "aurora": Provider(
        "Amazon Aurora",
        "the master user (rds_superuser)",
        "in the cluster's parameter group: aws rds modify-db-cluster-parameter-group "
        "--db-cluster-parameter-group-name GROUP --parameters "
        "ParameterName={name},ParameterValue={value},ApplyMethod=pending-reboot, then reboot",
        "the security group: allow TCP 5432 from this machine",
        "sslrootcert=global-bundle.pem (from truststore.pki.rds.amazonaws.com)",
        own_storage=True,
    ),
    "cloudsql": Provider(
        "Google Cloud SQL",
        "the user postgres (cloudsqlsuperuser)",
        "gcloud sql instances patch INSTANCE --database-flags={name}={value} (together with all "
        "other flags of the instance: the list is replaced)",
        "authorized networks, or connect through the Cloud SQL Auth Proxy",
        "sslrootcert=server-ca.pem (gcloud sql instances describe INSTANCE), sslmode=verify-ca",
    ),
    "azure": Provider(
        "Azure Database for PostgreSQL",
        "the administrator login (azure_pg_admin)",
        "az postgres flexible-server parameter set -g GROUP -s SERVER --name {name} --value "
        "{value}",
        "a firewall rule of the server: az postgres flexible-server firewall-rule create",
    ),
    "supabase": Provider(
        "Supabase",
        "the user postgres",
        "supabase --project-ref REF postgres-config update --config {name}={value}",
        "the direct address is IPv6 only: without IPv6 take the session pooler (port 5432 of "
        "….pooler.supabase.com, user postgres.REF)",
        "sslrootcert=prod-ca-2021.crt (dashboard: Database settings, SSL)",
    ),
    "neon": Provider(
        "Neon",
        "the database's owner (neon_superuser)",
        "{name} follows from the size of the compute endpoint: choose a larger one, or ask Neon",
        "the project's IP allowlist; a suspended compute endpoint starts within seconds",
        own_storage=True,
    ),
}


def by_host(host: str) -> Provider | None:
    for pattern, key in BY_HOST:
        if re.search(pattern, host, re.IGNORECASE):
            return PROVIDERS[key]
    return None


def recognised(facts: ServerFacts, host: str) -> Provider:
    """By the server itself, then by the host's name."""
    if facts.has_aurora_version:
        return PROVIDERS["aurora"]
    for key, pattern in BY_PARAMETER:
        if any(re.match(pattern, name) for name in facts.parameters):
            return PROVIDERS[key]
    for role, key in BY_ROLE.items():
        if role in facts.roles:
            return PROVIDERS[key]
    return by_host(host) or PROVIDERS["plain"]


def for_login(facts: ServerFacts, setting: ServerSetting, name: str, value: str) -> str:
    """How a login gets another value of a parameter that each session may set, at the place where
    its present one comes from."""
    if setting.source == "client":
        return f"leave {name} out of `options` in the address, and of PGOPTIONS"
    if setting.source == "database user":
        return remedy(
            "set_for_login_here",
            role=facts.login,
            database=facts.database,
            parameter=name,
            value=value,
        )
    if setting.source == "database":
        return remedy("set_for_database", database=facts.database, parameter=name, value=value)
    return remedy("set_for_login", role=facts.login, parameter=name, value=value)


def for_server(provider: Provider, name: str, value: str, *, restart: bool) -> str:
    """How a server gets another value of a parameter."""
    if provider.server_parameter:
        return provider.server_parameter.format(name=name, value=value)
    statement = remedy("set_for_server", parameter=name, value=value)
    if restart:
        return f"{statement} -- as a superuser; then restart the server"
    return f"{statement} " + remedy("reread_settings") + " -- as a superuser"
