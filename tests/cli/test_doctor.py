"""`millwheel doctor` on real servers: each thing that is missing is named with its remedy, and the
remedy helps."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from millwheel.services.doctor import store_checks
from millwheel.services.doctor.store_checks import Wanted
from millwheel.store import embedded
from millwheel.store.address import StoreAddress
from millwheel.store.console.examination import Examination, Unreached, examination
from tests.support.poolers import needs_pgbouncer, running_pooler
from tests.support.servers import quick_directory
from tests.support.shells import MODULE, Shell, lines
from tests.support.tcp_servers import PASSWORD, TcpServer, tcp_server

pytestmark = pytest.mark.newest

STATE_AND_CHECK = re.compile(r"(ok|warning|missing) +(.{14}) (.*)")


@pytest.fixture(scope="module")
def server() -> Iterator[TcpServer]:
    """A server that takes passwords, and has no TLS."""
    with tcp_server() as found:
        yield found


@pytest.fixture
def admin(server: TcpServer) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(server.socket_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def login(server: TcpServer, admin: psycopg.Connection[Any]) -> Iterator[str]:
    """The URL of a login that may connect."""
    admin.execute(f"CREATE ROLE clerk LOGIN PASSWORD '{PASSWORD}'".encode())
    yield server.url("clerk")
    admin.execute("DROP SCHEMA IF EXISTS wheel CASCADE")
    admin.execute("DROP OWNED BY clerk CASCADE")
    admin.execute("DROP ROLE clerk")


class Doctor:
    """Runs the command; keeps the findings of the last call."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.code = 0
        self.text = ""
        self.findings: list[dict[str, Any]] = []

    def __call__(self, store: str, *words: str, **environment: str) -> dict[str, dict[str, Any]]:
        """The findings by their check, of which the last one of each counts."""
        shell = Shell(self.directory, store, "wheel")
        self.code, out, err = shell.start("doctor", *words, "--json", **environment).end()
        assert "Traceback" not in err, err
        assert PASSWORD not in out + err
        told = json.loads(out)
        self.findings = told["findings"]
        assert told["missing"] == len(self.of("missing"))
        assert told["warnings"] == len(self.of("warning"))
        assert (self.code == 0) == (not self.of("missing"))
        assert all(finding["why"] for finding in self.findings)
        return {finding["check"]: finding for finding in self.findings}

    def in_words(self, store: str, *words: str, **environment: str) -> dict[str, dict[str, Any]]:
        """The same; the text for people says it as well."""
        found = self(store, *words, **environment)
        shell = Shell(self.directory, store, "wheel")
        code, self.text, err = shell.start("doctor", *words, **environment).end()
        assert code == self.code
        assert PASSWORD not in self.text + err
        assert [(state, check) for state, check, _ in self.lines()] == [
            (finding["state"], finding["check"]) for finding in self.findings
        ]
        for finding in self.findings:
            assert finding["why"] in self.text
            assert all(remedy in self.text for remedy in finding["remedy"])
        return found

    def lines(self) -> list[tuple[str, str, str]]:
        """State, check, and the text of each line of a finding."""
        found = [re.match(STATE_AND_CHECK, line) for line in self.text.splitlines()]
        return [(each[1], each[2].strip(), each[3]) for each in found if each]

    def of(self, state: str) -> list[str]:
        return [finding["check"] for finding in self.findings if finding["state"] == state]


@pytest.fixture
def doctor(tmp_path: Path) -> Doctor:
    (tmp_path / "shop.py").write_text(MODULE)
    return Doctor(tmp_path)


def statements(finding: dict[str, Any], number: int = 0) -> list[str]:
    """The statements of a remedy, without the words before and after."""
    text = re.sub(r" -- .*", "", finding["remedy"][number])
    return re.findall(r"(?:ALTER|CREATE|GRANT) [^;]*", text)


def apply(admin: psycopg.Connection[Any], finding: dict[str, Any], number: int = 0) -> None:
    found = statements(finding, number)
    assert found, finding
    for statement in found:
        admin.execute(statement.encode())


def objects(admin: psycopg.Connection[Any]) -> set[Any]:
    """All that a database has."""
    return set(
        admin.execute(
            "SELECT 'schema', nspname::text FROM pg_namespace WHERE nspname !~ '^pg_(toast_)?temp' "
            "UNION ALL SELECT 'relation', oid::text FROM pg_class "
            "UNION ALL SELECT 'function', oid::text FROM pg_proc"
        )
    )


# -- rights ---------------------------------------------------------------------------------------


def test_with_all_rights_nothing_is_missing_and_nothing_is_left(
    server: TcpServer, admin: psycopg.Connection[Any], doctor: Doctor
) -> None:
    before = objects(admin)
    found = doctor.in_words(server.url())
    assert doctor.code == 0
    assert doctor.of("missing") == []
    assert objects(admin) == before
    assert "make schemas, with tables" in found["rights"]["found"]
    assert "(synchronous_commit = on)" in found["commits"]["found"]
    assert re.match(r"one takes [\d.]+ ms", found["commit"]["found"])
    assert doctor.text.endswith("nothing is missing\n")


def test_with_the_least_rights_a_pipeline_runs(
    admin: psycopg.Connection[Any], login: str, doctor: Doctor
) -> None:
    """Those on one schema. Then the schema's tables are missing, which the login makes itself."""
    admin.execute("CREATE SCHEMA wheel")
    admin.execute("GRANT USAGE, CREATE ON SCHEMA wheel TO clerk")
    before = objects(admin)
    found = doctor.in_words(login, "wheel")
    assert objects(admin) == before
    assert doctor.of("missing") == ["schema"]
    assert doctor.code == 3
    assert found["schema"]["remedy"][0].startswith("millwheel migrate wheel --store ")
    assert "in the schema wheel" in found["rights"]["found"]
    Shell(doctor.directory, login, "wheel")("migrate", "wheel")
    found = doctor(login, "wheel")
    assert (doctor.code, doctor.of("missing")) == (0, [])
    assert found["tables"]["state"] == "ok"


@pytest.mark.parametrize("number", [0, 1], ids=["on the database", "on one schema"])
def test_a_login_without_rights_gets_the_statements_that_give_them(
    admin: psycopg.Connection[Any], login: str, doctor: Doctor, number: int
) -> None:
    found = doctor.in_words(login, "wheel")
    assert doctor.of("missing") == ["rights"]
    assert doctor.code == 7
    assert "permission denied for database" in found["rights"]["found"]
    apply(admin, found["rights"], number)
    doctor(login, "wheel")
    assert doctor.of("missing") == ["schema"]


@pytest.mark.parametrize("given", ["USAGE", "CREATE"])
def test_a_right_that_is_missing_on_the_schema(
    admin: psycopg.Connection[Any], login: str, doctor: Doctor, given: str
) -> None:
    admin.execute("CREATE SCHEMA wheel")
    admin.execute(f"GRANT {given} ON SCHEMA wheel TO clerk".encode())
    found = doctor(login, "wheel")
    assert doctor.of("missing") == ["rights"]
    assert "permission denied for schema wheel" in found["rights"]["found"]
    apply(admin, found["rights"])
    doctor(login, "wheel")
    assert doctor.of("missing") == ["schema"]


def test_a_login_that_may_not_change_the_tables_of_another_one(
    server: TcpServer, admin: psycopg.Connection[Any], login: str, doctor: Doctor
) -> None:
    shell = Shell(doctor.directory, server.url(), "wheel")
    shell("migrate", "wheel")
    admin.execute("GRANT USAGE, CREATE ON SCHEMA wheel TO clerk")
    found = doctor(login, "wheel")
    assert doctor.of("missing") == ["tables"]
    shell("migrate", "wheel", "--roles")
    try:
        apply(admin, found["tables"])
        found = doctor(login, "wheel")
        assert doctor.of("missing") == []
    finally:
        admin.execute("DROP SCHEMA wheel CASCADE")
        for role in ("owner", "worker", "operator", "reader"):
            admin.execute(f"DROP OWNED BY postgres_wheel_{role}".encode())
            admin.execute(f"DROP ROLE postgres_wheel_{role}".encode())


def test_a_trial_that_is_ended_in_its_middle_leaves_nothing(
    server: TcpServer, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = objects(admin)
    rows = Examination._rows
    with examination(server.url()) as found:
        assert isinstance(found, Examination)

        def ended(self: Examination, name: str, **parameters: Any) -> Any:
            if name == "limit_trial":
                pid = self._connection.info.backend_pid
                admin.execute("SELECT pg_terminate_backend(%s)", (pid,))
            return rows(self, name, **parameters)

        monkeypatch.setattr(Examination, "_rows", ended)
        with pytest.raises(Exception, match="terminating connection"):
            found.rights_trial(None)
    assert objects(admin) == before


# -- poolers --------------------------------------------------------------------------------------


@needs_pgbouncer
def test_a_pooler_in_session_mode(server: TcpServer, doctor: Doctor) -> None:
    with running_pooler(server.socket_url, "session") as pooler:
        found = doctor.in_words(pooler.url)
    assert (doctor.code, doctor.of("missing")) == (0, [])
    assert "in session mode" in found["pooler"]["found"]
    assert found["advisory lock"]["state"] == found["prepared"]["state"] == "ok"


@needs_pgbouncer
@pytest.mark.parametrize("mode", ["transaction", "statement"])
def test_a_pooler_that_shares_sessions(server: TcpServer, doctor: Doctor, mode: str) -> None:
    """The rest is examined all the same, and no other client gets a setting or lock by that."""
    state = (
        "SELECT current_setting('synchronous_commit'), current_setting('search_path'), "
        "(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory')"
    )
    lines = ("default_pool_size = 1",)
    with (
        running_pooler(server.socket_url, mode, *lines) as pooler,
        psycopg.connect(pooler.url, autocommit=True, prepare_threshold=None) as other,
    ):
        other.execute("SET synchronous_commit = local")
        before = other.execute(state).fetchone()
        found = doctor.in_words(pooler.url)
        if mode == "transaction":  # in statement mode PgBouncer ends a session that says BEGIN
            assert other.execute(state).fetchone() == before
    assert doctor.of("missing") == ["pooler"]
    assert doctor.code == 2
    assert "pool_mode = session" in found["pooler"]["remedy"][0]
    assert found["encoding"]["state"] == "ok"


# -- servers that are no store --------------------------------------------------------------------


def test_a_standby(server: TcpServer, doctor: Doctor) -> None:
    with server.standby() as url:
        found = doctor.in_words(url)
    assert doctor.of("missing") == ["primary"]
    assert doctor.code == 7
    assert "target_session_attrs=read-write" in found["primary"]["remedy"][1]
    assert "rights" not in found


def test_an_asynchronous_standby_is_a_warning(server: TcpServer, doctor: Doctor) -> None:
    with server.standby():
        for _ in range(100):
            found = doctor(server.url())
            if "standbys" in found:
                break
    assert found["standbys"]["state"] == "warning"
    assert "synchronous_standby_names" in found["standbys"]["remedy"][0]
    assert doctor.code == 0


def test_an_old_version_ends_the_examination(
    server: TcpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its catalogs may lack what the other checks ask for."""
    monkeypatch.setattr(Examination, "version_number", property(lambda _: 140_015))
    monkeypatch.setattr(Examination, "version", property(lambda _: "14.15"))
    found = list(store_checks.store(StoreAddress.parse(server.url()), Wanted()))
    assert [finding.check for finding in found] == ["server", "version"]
    assert found[1].state == "missing"


@pytest.mark.parametrize(
    ("password", "words"), [("wrong", "the password is wrong"), ("", "none is given")]
)
def test_a_wrong_password(server: TcpServer, doctor: Doctor, password: str, words: str) -> None:
    environment = {"PGPASSWORD": "", "PGPASSFILE": "/nowhere"}
    found = doctor.in_words(server.url(password=password), **environment)
    assert doctor.of("missing") == ["server"]
    assert doctor.code == 7
    assert words in found["server"]["found"]
    assert "Python" in found, "the machine is examined all the same"


def test_a_server_without_tls(server: TcpServer, doctor: Doctor) -> None:
    found = doctor.in_words(server.url(options="?sslmode=require"))
    assert doctor.of("missing") == ["server"]
    assert "the server has no TLS" in found["server"]["found"]
    assert "ssl = on" in found["server"]["remedy"][0]


def test_a_server_with_tls(doctor: Doctor) -> None:
    with tcp_server(tls=True) as server:
        found = doctor(server.url(options="?sslmode=require"))
        assert found["TLS"]["state"] == "ok"
        assert found["TLS"]["found"].startswith("encrypted")
        found = doctor(server.url(options="?sslmode=verify-full&sslrootcert=system"))
        assert doctor.of("missing") == ["server"]
        assert "certificate is not trusted" in found["server"]["found"]
        with examination(server.url(options="?sslmode=disable")) as refused:
            assert isinstance(refused, Unreached)
            assert "no encryption" in refused.text


def test_hosts_that_do_not_answer(doctor: Doctor) -> None:
    found = doctor.in_words("postgresql://clerk@127.0.0.1:1/wares")
    assert doctor.of("missing") == ["server"]
    assert doctor.code == 7
    assert "no server listens there (127.0.0.1:1" in found["server"]["found"]
    found = doctor("postgresql://clerk@nowhere.invalid/wares")
    assert "no host of this name" in found["server"]["found"]
    found = doctor("postgresql://clerk@/wares?host=/nowhere")
    assert "no server has its socket there" in found["server"]["found"]


def test_a_database_or_login_that_is_not_there(
    server: TcpServer, admin: psycopg.Connection[Any], doctor: Doctor
) -> None:
    found = doctor(server.socket_url.replace("/postgres?", "/wares?"))
    assert "no such database" in found["server"]["found"]
    apply(admin, found["server"])
    try:
        assert doctor(server.socket_url.replace("/postgres?", "/wares?"))["encoding"]
        assert doctor.code == 0
    finally:
        admin.execute("DROP DATABASE wares")
    found = doctor(server.socket_url.replace("admin@", "stranger@"))
    assert "no such login" in found["server"]["found"]
    apply(admin, found["server"])
    admin.execute("DROP ROLE stranger")


# -- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "check", "state"),
    [
        ("default_transaction_read_only", "on", "read only", "missing"),
        ("lock_timeout", "500ms", "time limit", "warning"),
        ("statement_timeout", "1s", "time limit", "warning"),
        ("idle_session_timeout", "1h", "time limit", "warning"),
    ],
)
@pytest.mark.parametrize(
    "place", ["ROLE clerk", "DATABASE postgres", "ROLE clerk IN DATABASE postgres"]
)
def test_a_setting_of_the_login_or_the_database(
    admin: psycopg.Connection[Any],
    login: str,
    doctor: Doctor,
    name: str,
    value: str,
    check: str,
    state: str,
    place: str,
) -> None:
    """The remedy undoes it where it was made."""
    admin.execute("GRANT CREATE ON DATABASE postgres TO clerk")
    admin.execute(f"ALTER {place} SET {name} = '{value}'".encode())
    try:
        found = doctor(login)[check]
        assert found["state"] == state
        with psycopg.connect(admin.info.dsn, autocommit=True) as fresh:
            fresh.execute("SET default_transaction_read_only = off")
            apply(fresh, found)
        assert check not in doctor(login)
        assert doctor.code == 0
    finally:
        with psycopg.connect(admin.info.dsn, autocommit=True) as fresh:
            fresh.execute("SET default_transaction_read_only = off")
            fresh.execute(f"ALTER {place} RESET {name}".encode())


def test_connections_of_a_login(admin: psycopg.Connection[Any], login: str, doctor: Doctor) -> None:
    admin.execute("GRANT CREATE ON DATABASE postgres TO clerk")
    admin.execute("ALTER ROLE clerk CONNECTION LIMIT 10")
    found = doctor(login, "--workers", "2")
    assert doctor.of("missing") == ["connections"]
    assert "room for 1 more worker" in found["connections"]["found"]
    apply(admin, found["connections"])
    doctor(login, "--workers", "2")
    assert doctor.code == 0


def test_an_encoding_that_has_not_every_character(
    server: TcpServer, admin: psycopg.Connection[Any], doctor: Doctor
) -> None:
    admin.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    try:
        found = doctor.in_words(server.url().replace("/postgres", "/latin"))
        assert doctor.of("missing") == ["encoding"]
        apply(admin, found["encoding"])
        doctor(server.url().replace("/postgres", "/latin_utf8"))
        assert doctor.code == 0
    finally:
        for name in ("latin", "latin_utf8"):
            admin.execute(f"DROP DATABASE IF EXISTS {name}".encode())


def test_a_service_is_recognised_by_its_roles_and_functions(
    server: TcpServer, admin: psycopg.Connection[Any], doctor: Doctor
) -> None:
    admin.execute("CREATE ROLE rds_superuser")
    try:
        assert doctor(server.url())["provider"]["found"] == "Amazon RDS"
        admin.execute("CREATE FUNCTION aurora_version() RETURNS text LANGUAGE sql RETURN '17.4'")
        found = doctor(server.url(), "--workers", "50")
        assert found["provider"]["found"] == "Amazon Aurora"
        assert "modify-db-cluster-parameter-group" in found["connections"]["remedy"][0]
    finally:
        admin.execute("DROP FUNCTION IF EXISTS aurora_version")
        admin.execute("DROP ROLE rds_superuser")


# -- a machine and a pipeline ---------------------------------------------------------------------


@pytest.fixture
def empty() -> Iterator[Doctor]:
    """In a directory that the account of an embedded server can reach."""
    directory = Path(tempfile.mkdtemp(prefix="mw-doctor-", dir=quick_directory()))
    directory.chmod(0o755)
    (directory / "shop.py").write_text(MODULE)
    yield Doctor(directory)
    embedded.remove(directory / "store")
    shutil.rmtree(directory)


def test_a_directory_before_and_after_the_first_run(empty: Doctor) -> None:
    store = str(empty.directory / "store")
    found = empty(store, "shop:pipeline", INPUT="lines.jsonl", NAME="wheel")
    assert "there is none" in found["store"]["found"]
    assert found["Postgres"]["state"] == "ok"
    assert empty.of("missing") == ["source"]
    assert empty.code == 5
    assert not (empty.directory / "store").exists()
    shell = Shell(empty.directory, store, "wheel")
    shell.write(lines(50))
    shell("run", "shop:pipeline")
    found = empty(store, "shop:pipeline", INPUT=str(shell.input), NAME="wheel")
    assert (empty.code, empty.of("missing")) == (0, [])
    assert found["schema"]["found"].startswith("wheel is at version")
    assert embedded.status(empty.directory / "store").state == "stopped", "as it was before"


def test_code_that_cannot_be_imported(server: TcpServer, doctor: Doctor) -> None:
    for target, code in (("shop:fails", 6), ("nothing:pipeline", 2), ("shop:cycle", 2)):
        doctor(server.url(), target)
        assert doctor.of("missing") == ["pipeline"]
        assert doctor.code == code


PLACES = """
import os
from datetime import datetime
from msgspec import Struct
from millwheel import Discard, JsonLines, JsonLinesFiles, Pipeline, Stream
from millwheel.kafka import Kafka, KafkaCluster

class Line(Struct):
    at: datetime

LINES, FOLLOWED, GROWING, TOPIC = (Stream(name, Line) for name in ("a", "b", "c", "d"))
pipeline = Pipeline("wheel")
when = lambda line: line.at
pipeline.inject(LINES, JsonLines("here.jsonl"), timestamp=when)
pipeline.inject(FOLLOWED, JsonLines("later.jsonl", follow=True), timestamp=when)
pipeline.inject(GROWING, JsonLines("files/", follow=True), timestamp=when)
pipeline.inject(TOPIC, Kafka(KafkaCluster(os.environ["BROKERS"]), "orders"), timestamp=when)
pipeline.sink(LINES, JsonLinesFiles(os.environ["OUTPUT"]))
for stream in (FOLLOWED, GROWING, TOPIC):
    pipeline.sink(stream, Discard())
"""


def test_the_places_of_sources_and_sinks(server: TcpServer, doctor: Doctor) -> None:
    directory = doctor.directory
    (directory / "places.py").write_text(PLACES)
    (directory / "a file").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as broker:
        brokers = f"127.0.0.1:1,127.0.0.1:{broker.getsockname()[1]}"
        doctor(server.url(), "places:pipeline", BROKERS="127.0.0.1:1", OUTPUT="a file")
        by_state = {
            state: [f["found"] for f in doctor.findings
                    if f["state"] == state and f["check"] in ("source", "sink")]
            for state in ("ok", "warning", "missing")
        }  # fmt: skip
        assert len(by_state["missing"]) == 3
        assert "here.jsonl is not there" in by_state["missing"][0]
        assert (
            "topic orders: no broker answers (127.0.0.1:1: Connection ref" in by_state["missing"][1]
        )
        assert "is no directory" in by_state["missing"][2]
        assert [" is not there yet" in found or "there is no dir" in found
                for found in by_state["warning"]] == [True, True]  # fmt: skip
        (directory / "here.jsonl").write_text("")
        (directory / "later.jsonl").write_text("")
        (directory / "files").mkdir()
        doctor(server.url(), "places:pipeline", BROKERS=brokers, OUTPUT="out")
        assert doctor.of("missing") == ["schema"]
        assert doctor.of("warning") == []
        assert not (directory / "out").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_this_login_may_not_read(server: TcpServer, doctor: Doctor) -> None:
    (doctor.directory / "wheel.jsonl").write_text("")
    (doctor.directory / "wheel.jsonl").chmod(0)
    doctor(server.url(), "shop:pipeline", INPUT="wheel.jsonl", NAME="wheel")
    assert "source" in doctor.of("missing")


def test_ports(server: TcpServer, doctor: Doctor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        asked = ("--http", f"127.0.0.1:{number}", "--listen", "127.0.0.1:0")
        found = doctor.in_words(server.url(), *asked)
        assert doctor.of("missing") == ["port"]
        assert doctor.code == 2
        assert f"127.0.0.1:{number}" in found["port"]["found"]
    doctor(server.url(), "--http", "0.0.0.0:0")
    assert doctor.of("missing") == ["port"], "anybody could read metrics"
    doctor(server.url(), "--http", "0.0.0.0:0", MILLWHEEL_HTTP_TOKENS="secret")
    assert doctor.code == 0
