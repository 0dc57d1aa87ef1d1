"""The conclusions of `millwheel doctor` from facts of a server and errors of libpq."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millwheel.services.doctor import machine_checks, server_checks
from millwheel.services.doctor.findings import Finding
from millwheel.services.doctor.providers import PROVIDERS, by_host, recognised
from millwheel.services.doctor.reaching import unreached
from millwheel.store.console.examination import (
    CommitTimes,
    Encryption,
    ServerClock,
    ServerFacts,
    ServerSetting,
    Unreached,
)

ROOT = Path(__file__).resolve().parents[2]
PLAIN = PROVIDERS["plain"]

SETTINGS = {
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "fsync": "on",
    "full_page_writes": "on",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "lock_timeout": "0",
    "max_connections": "100",
    "statement_timeout": "0",
    "superuser_reserved_connections": "3",
    "synchronous_commit": "on",
    "synchronous_standby_names": "",
}


def facts(
    *, source: str = "default", settings: dict[str, str] | None = None, **changes: Any
) -> Any:
    found = ServerFacts(
        version="18.2",
        version_number=180_002,
        login="shop",
        database="wares",
        is_superuser=False,
        is_standby=False,
        encoding="UTF8",
        may_make_schemas=True,
        open_schemas=[],
        connections=3,
        login_connections=3,
        database_connections=3,
        login_limit=-1,
        database_limit=-1,
        tls=None,
        standbys=0,
        settings={
            name: ServerSetting(value, "", source)
            for name, value in {**SETTINGS, **(settings or {})}.items()
        },
        parameters=[],
        roles=[],
        has_aurora_version=False,
    )
    return msgspec.structs.replace(found, **changes)


# -- versions -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "text", "state"),
    [
        (120_022, "12.22", "missing"),
        (140_015, "14.15 (Debian 14.15-1)", "missing"),
        (150_010, "15.10", "ok"),
        (160_001, "16.1", "ok"),
        (170_000, "17.0", "ok"),
        (180_002, "18.2", "ok"),
        (190_000, "19beta1", "warning"),
    ],
)
def test_versions(number: int, text: str, state: str) -> None:
    found = server_checks.version(number, text)
    assert found.state == state
    assert text in found.found
    assert bool(found.remedy) == (state != "ok")
    if state == "missing":
        assert found.exit_code == 7
        assert "18" in found.remedy[0]


# -- managed services -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "title"),
    [
        ("shop.abc123.eu-central-1.rds.amazonaws.com", "Amazon RDS"),
        ("shop.proxy-abc123.eu-central-1.rds.amazonaws.com", "Amazon RDS"),
        ("shop.cluster-abc123.eu-central-1.rds.amazonaws.com", "Amazon Aurora"),
        ("shop.cluster-ro-abc123.eu-central-1.rds.amazonaws.com", "Amazon Aurora"),
        ("shop.postgres.database.azure.com", "Azure Database for PostgreSQL"),
        ("/cloudsql/project:region:shop", "Google Cloud SQL"),
        ("db.abcdefgh.supabase.co", "Supabase"),
        ("aws-0-eu-central-1.pooler.supabase.com", "Supabase"),
        ("ep-cool-leaf-1234-pooler.eu-central-1.aws.neon.tech", "Neon"),
    ],
)
def test_services_are_recognised_by_their_hosts(host: str, title: str) -> None:
    found = by_host(host)
    assert found is not None
    assert found.title == title
    assert recognised(facts(), host).title == title


@pytest.mark.parametrize(
    ("changes", "title"),
    [
        ({"parameters": ["rds.extensions"]}, "Amazon RDS"),
        ({"parameters": ["apg_plan_mgmt.x", "rds.extensions"]}, "Amazon Aurora"),
        ({"has_aurora_version": True, "roles": ["rds_superuser"]}, "Amazon Aurora"),
        ({"parameters": ["cloudsql.iam_authentication"]}, "Google Cloud SQL"),
        ({"parameters": ["azure.extensions"]}, "Azure Database for PostgreSQL"),
        ({"parameters": ["neon.timeline_id"]}, "Neon"),
        ({"roles": ["supabase_admin"]}, "Supabase"),
        ({"roles": ["rds_superuser"]}, "Amazon RDS"),
        ({}, "plain Postgres"),
    ],
)
def test_services_are_recognised_by_what_they_say(changes: dict[str, Any], title: str) -> None:
    """Behind a name of one's own, or an address."""
    assert recognised(facts(**changes), "db.internal").title == title


@pytest.mark.parametrize("key", PROVIDERS)
def test_each_service_says_how_a_parameter_is_set(key: str) -> None:
    (found,) = server_checks.connections(facts(connections=99), PROVIDERS[key], 4, ingest=False)
    assert found.state == "missing"
    assert "max_connections" in found.remedy[0]
    if key not in ("plain", "neon"):
        assert "150" in found.remedy[0]
        assert "{" not in found.remedy[0]


# -- settings -------------------------------------------------------------------------------------


def by_check(findings: Any) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings}


@pytest.mark.parametrize(
    ("source", "remedy"),
    [
        ("user", "ALTER ROLE \"shop\" SET lock_timeout = '0';"),
        ("database", "ALTER DATABASE \"wares\" SET lock_timeout = '0';"),
        ("database user", 'ALTER ROLE "shop" IN DATABASE "wares" SET lock_timeout = \'0\';'),
        ("configuration file", "ALTER ROLE \"shop\" SET lock_timeout = '0';"),
        ("client", "leave lock_timeout out of `options` in the address, and of PGOPTIONS"),
    ],
)
def test_a_setting_is_undone_where_it_comes_from(source: str, remedy: str) -> None:
    found = list(server_checks.settings(facts(source=source, settings={"lock_timeout": "500"})))
    assert [finding.state for finding in found] == ["warning"]
    assert "0.5 s" in found[0].found
    assert found[0].remedy == (remedy,)


@pytest.mark.parametrize(
    ("name", "value", "states"),
    [
        ("lock_timeout", "60000", ["ok"]),
        ("statement_timeout", "30000", ["warning"]),
        ("statement_timeout", "300000", ["ok"]),
        ("transaction_timeout", "1000", ["warning"]),
        ("idle_session_timeout", "3600000", ["warning"]),
        ("idle_in_transaction_session_timeout", "1000", ["ok"]),
        ("default_transaction_isolation", "serializable", ["ok"]),
        ("default_transaction_read_only", "on", ["missing"]),
    ],
)
def test_settings_that_end_sessions(name: str, value: str, states: list[str]) -> None:
    found = server_checks.settings(facts(settings={name: value}))
    assert [finding.state for finding in found] == states


def test_what_commits_wait_for() -> None:
    found = by_check(server_checks.durability("on", facts(), PLAIN))
    assert {finding.state for finding in found.values()} == {"ok"}
    weak = facts(settings={"synchronous_commit": "off"}, source="user")
    raised = by_check(server_checks.durability("on", weak, PLAIN))["commits"]
    assert raised.state == "ok"
    assert "which raise it" in raised.found
    kept = by_check(server_checks.durability("off", weak, PLAIN))["commits"]
    assert kept.state == "warning"
    assert kept.remedy == ("ALTER ROLE \"shop\" SET synchronous_commit = 'on';",)
    careless = facts(settings={"fsync": "off", "full_page_writes": "off"})
    (_, found_off) = server_checks.durability("on", careless, PLAIN)
    assert found_off.state == "warning"
    assert "ALTER SYSTEM SET fsync = 'on';" in found_off.remedy[0]
    assert "pg_reload_conf" in found_off.remedy[0]
    for service in ("aurora", "neon"):  # their storage does it
        assert len(list(server_checks.durability("on", careless, PROVIDERS[service]))) == 1
    lagging = by_check(server_checks.durability("on", facts(standbys=1), PLAIN))["standbys"]
    assert lagging.state == "warning"
    names = {"synchronous_standby_names": "*"}
    assert "standbys" not in by_check(
        server_checks.durability("on", facts(standbys=1, settings=names), PLAIN)
    )


@pytest.mark.parametrize(
    ("changes", "workers", "ingest", "state", "says"),
    [
        ({}, 1, False, "ok", "room for 13 more workers"),
        ({}, 13, False, "ok", "room for 13"),
        ({}, 14, False, "missing", "14 are to run"),
        ({}, 13, True, "missing", "room for 10"),
        ({"login_limit": 10}, 1, False, "ok", "shop may have 10: room for 1 more worker"),
        ({"login_limit": 10}, 2, False, "missing", "shop may have 10"),
        ({"database_limit": 8}, 1, False, "missing", "the database may have 8"),
        ({"connections": 101}, 1, False, "missing", "room for 0"),
    ],
)
def test_connections(
    changes: dict[str, Any], workers: int, ingest: bool, state: str, says: str
) -> None:
    (found,) = server_checks.connections(facts(**changes), PLAIN, workers, ingest=ingest)
    assert found.state == state
    assert says in found.found
    if state == "missing" and "login_limit" in changes:
        assert found.remedy == ('ALTER ROLE "shop" CONNECTION LIMIT -1;',)
    if "database_limit" in changes:
        assert found.remedy == ('ALTER DATABASE "wares" CONNECTION LIMIT -1;',)


def test_the_connections_of_a_worker_are_those_that_the_pages_name() -> None:
    page = (ROOT / "docs" / "howto" / "run" / "scale.md").read_text("utf-8")
    assert "at most seven" in page
    assert server_checks.CONNECTIONS == 7
    assert server_checks.CONNECTIONS + server_checks.INGEST_CONNECTIONS == 9


# -- the rest of a server -------------------------------------------------------------------------


def test_encryption() -> None:
    over = Encryption(is_on=True, mode="verify-full", is_local=False)
    found = server_checks.encrypted(over, facts(tls="TLSv1.3"), PLAIN)
    assert (found.state, "TLSv1.3" in found.found) == ("ok", True)
    unchecked = server_checks.encrypted(over._replace(mode="require"), facts(tls="TLSv1.3"), PLAIN)
    assert unchecked.state == "warning"
    assert "sslmode=verify-full" in unchecked.remedy[0]
    clear = server_checks.encrypted(over._replace(is_on=False), facts(), PROVIDERS["rds"])
    assert clear.state == "warning"
    assert "global-bundle.pem" in clear.remedy[0]
    local = server_checks.encrypted(over._replace(is_on=False, is_local=True), facts(), PLAIN)
    assert local.state == "ok"


def test_clock() -> None:
    assert server_checks.clock(ServerClock(0.0004, 0.001)).found == "the same as the server's"
    assert server_checks.clock(ServerClock(0.25, 0.001)).found == "250 ms ahead of the server's"
    off = server_checks.clock(ServerClock(-61.0, 0.001))
    assert off.state == "warning"
    assert "61.0 s behind" in off.found


def test_commit_latency() -> None:
    quick = server_checks.commit_latency(CommitTimes([0.001, 0.002, 0.004], 0.0005))
    assert quick.state == "ok"
    assert quick.found.startswith("one takes 2.0 ms, of which 0.50 ms on the way")
    assert "at each stage" in quick.why
    disk = server_checks.commit_latency(CommitTimes([0.08], 0.001))
    assert (disk.state, "the server's disk is slow" in disk.found) == ("warning", True)
    far = server_checks.commit_latency(CommitTimes([0.08], 0.07))
    assert "the network is slow" in far.found
    assert far.remedy == ("run workers near the server",)
    assert server_checks.commit_latency(None).state == "warning"


def test_rights() -> None:
    allowed = server_checks.rights({}, facts(), PLAIN, None, None)
    assert allowed.state == "ok"
    none = {"make schemas": "permission denied for database wares"}
    lacking = server_checks.rights(none, facts(), PLAIN, "orders", None)
    assert lacking.state == "missing"
    assert lacking.remedy[0].startswith('GRANT CREATE ON DATABASE "wares" TO "shop"; -- as a super')
    assert lacking.remedy[1] == (
        'only for orders: CREATE SCHEMA "orders"; GRANT USAGE, CREATE ON SCHEMA "orders" TO "shop";'
    )
    elsewhere = server_checks.rights(none, facts(open_schemas=["a"]), PLAIN, None, None)
    assert elsewhere.state == "ok"
    as_whom = server_checks.rights(none, facts(), PROVIDERS["rds"], "orders", None).remedy[0]
    assert as_whom.endswith("as the master user (rds_superuser)")


@pytest.mark.parametrize(
    ("service", "words"),
    [("plain", "pool_mode = session"), ("supabase", "5432"), ("neon", "-pooler"),
     ("azure", "pgbouncer.pool_mode")],
)  # fmt: skip
def test_the_way_to_session_mode_of_each_service(service: str, words: str) -> None:
    found = server_checks.shared(PROVIDERS[service])
    assert found.exit_code == 2
    assert any(words in remedy for remedy in found.remedy)


# -- errors of libpq ------------------------------------------------------------------------------

AT = Unreached("", "db.example", "5432", "shop", "wares", has_password=True)


@pytest.mark.parametrize(
    ("text", "cause", "remedy"),
    [
        ('connection to server at "10.0.0.1", port 5432 failed: Connection refused\n\tIs it '
         "running on that host?",
         "no server listens there", "pg_isready -h db.example"),
        ("connection timeout expired", "nothing answers there", "listen_addresses"),
        ('FATAL:  password authentication failed for user "shop"', "password is wrong", "%40"),
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.2", user "shop", database "wares", no '
         "encryption", "lets this login not in", "sslmode=require"),
        ("server does not support SSL, but SSL was required", "has no TLS", "ssl = on"),
        ("SSL error: certificate verify failed", "not trusted", "sslrootcert"),
        ('FATAL:  database "wares" does not exist', "no such database", "CREATE DATABASE"),
        ('FATAL:  role "shop" does not exist', "no such login", 'CREATE ROLE "shop" LOGIN'),
        ("FATAL:  sorry, too many clients already", "all connections", "max_connections"),
        ("FATAL:  the database system is starting up", "starting or stopping", "wait"),
        ("FATAL:  Tenant or user not found", "does not know this project", "postgres.REF"),
        ("ERROR:  Endpoint ID is not specified", "endpoint", "options=endpoint%3Ddb"),
        ("FATAL: feature not supported: RDS Proxy currently doesn't support command-line options.",
         "refuses the `options`", "PGOPTIONS"),
        ("something new", "cannot be used", "log"),
    ],
)  # fmt: skip
def test_errors_of_libpq(text: str, cause: str, remedy: str) -> None:
    found = unreached(AT._replace(text=text))
    assert found.state == "missing"
    assert found.exit_code == 7
    assert cause in found.found
    assert "db.example:5432" in found.found
    assert any(remedy in each for each in found.remedy)
    assert "\n" not in found.found


def test_a_service_has_its_own_reason_why_nothing_answers() -> None:
    away = AT._replace(text="connection timeout expired", host="db.abc.supabase.co")
    assert "IPv6" in unreached(away).remedy[0]
    aurora = away._replace(host="x.cluster-abc.eu-central-1.rds.amazonaws.com")
    assert "security group" in unreached(aurora).remedy[0]


# -- the machine ----------------------------------------------------------------------------------


def test_the_extras_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    declared = project["optional-dependencies"]
    for extra, distributions in machine_checks.EXTRAS.items():
        names = {re.split(r"[\[<>=; ]", line)[0] for line in declared[extra]}
        assert names.issuperset(distributions), extra


def test_the_page_has_every_check() -> None:
    page = (ROOT / "docs" / "howto" / "doctor.md").read_text("utf-8")
    room = ROOT / "millwheel" / "services" / "doctor"
    code = "".join(path.read_text("utf-8") for path in room.glob("*.py"))
    names = set(re.findall(r'(?:ok|warning|missing|disk|_brokers)\(\s*"([\w ]+)",', code))
    names |= set(re.findall(r'disk\(\w+, "(\w+)"', code))
    assert len(names) > 25
    assert {name for name in names if f"`{name}`" not in page} <= {"provider", "Python"}


def test_an_extra_is_missing_only_if_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str | None:
        return None if name == "aiokafka" else "1.0"

    monkeypatch.setattr(machine_checks, "installed", absent)
    states = [finding.state for finding in machine_checks.packages("0.1", {})]
    assert states == ["ok", "ok"]
    (_, lacking, _) = machine_checks.packages("0.1", {"kafka": "the pipeline reads from Kafka"})
    assert lacking.state == "missing"
    assert lacking.exit_code == 2
    assert lacking.remedy == ("pip install 'millwheel-engine[kafka]'",)
