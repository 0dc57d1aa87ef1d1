"""The box for SQL: it answers, it can change nothing and reach nobody, and it ends."""

from __future__ import annotations

import csv
import io
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from psycopg import sql

from millwheel.errors import UsageError
from millwheel.store.console.asked_question import AnswerLimits, ask
from millwheel.store.console.migrate import migrate
from millwheel.store.console.roles import Roles, make_roles
from millwheel.ui.access import Level, Viewer, ViewerAccess
from millwheel.ui.line_chart import line_charts
from millwheel.ui.pages import sql_page
from tests.support.seen_pages import SeenPages, text_of
from tests.support.store_sites import Owner, PostgresSite, Schema

pytestmark = pytest.mark.newest

PagesOf = Callable[..., SeenPages]
PAGE = "/pipelines/wheel/sql"
PASSWORD = "a password of the tests"
BOB = ViewerAccess(guests=Viewer("bob", Level.LOOK))


@pytest.fixture
async def pages(postgres: PostgresSite, pages_of: PagesOf) -> SeenPages:
    """Of a viewer who may mend, with the login of a superuser."""
    await Owner.take(postgres.store)
    return pages_of(postgres.schema.url)


def asked(pages: SeenPages, statement: str) -> Any:
    return pages.json(PAGE, statement=statement)["answer"]


# -- answers --------------------------------------------------------------------------------------


def test_an_answer_is_that_of_postgres(pages: SeenPages, postgres: PostgresSite) -> None:
    statement = "SELECT id, slot_from, owner, NULL AS none FROM key_interval ORDER BY id -- all"
    found = asked(pages, statement)
    stored = postgres.schema.query(
        "SELECT id::text, slot_from::text, owner::text, NULL FROM {key_interval} ORDER BY id",
        key_interval="key_interval",
    )
    assert (found["state"], [tuple(row) for row in found["rows"]]) == ("done", stored)
    assert [column["name"] for column in found["columns"]] == ["id", "slot_from", "owner", "none"]
    assert [column["is_number"] for column in found["columns"]] == [True, True, False, False]
    assert "Seq Scan on key_interval" in found["plan"] or "Index" in found["plan"]
    text = pages.text(PAGE, statement=statement)
    assert all(owner in text for _, _, owner, _ in stored)
    assert "Seq Scan" in text or "Index" in text
    assert asked(pages, "SELECT 1 AS a, 2 AS a;")["rows"] == [["1", "2"]]
    assert asked(pages, "SELECT '<b>' || chr(8238)")["rows"] == [["<b>\u202e"]]
    assert "&lt;b&gt;\ufffd" in pages.get(PAGE, statement="SELECT '<b>' || chr(8238)").text


def test_the_views_are_described_and_the_examples_run(
    pages: SeenPages, postgres: PostgresSite
) -> None:
    found = pages.json(PAGE)
    assert found["answer"]["state"] == "none"
    described = {view["name"]: view["comment"] for view in found["views"]}
    stored = postgres.schema.query(
        "SELECT relname::text, obj_description(oid, 'pg_class') FROM pg_class "
        f"WHERE relnamespace = '{postgres.schema.name}'::regnamespace AND relkind = 'v'"
    )
    assert dict(stored).items() <= described.items()
    tables = {name for (name,) in postgres.schema.query("SELECT tablename FROM pg_tables")}
    assert described.keys() & tables <= {"counts", "order"}  # sinks, and none of the engine's
    (due,) = (
        column
        for view in found["views"]
        if view["name"] == "timers"
        for column in view["columns"]
        if column["name"] == "due"
    )
    assert due["type"] == "timestamp with time zone"
    assert "when it fires" in due["comment"]
    assert len(found["examples"]) == 5
    for example in found["examples"]:
        answer = asked(pages, example["statement"])
        assert answer["state"] == "done", (example, answer["words"])


def test_a_time_and_a_number_become_a_chart(pages: SeenPages) -> None:
    statement = (
        "SELECT now() + n * interval '1 minute' AS at, CASE WHEN n <> 5 THEN n END AS parts "
        "FROM generate_series(1, 10) AS n UNION ALL SELECT 'infinity', 3"
    )
    answer = pages.get(PAGE, statement=statement)
    assert answer.text.count("<polyline") == 2  # a value is missing between them
    assert "parts: 1 to 10" in text_of(answer)
    assert "<polyline" not in pages.get(PAGE, statement="SELECT 1 AS a, 'x' AS b").text


def test_a_chart_goes_by_time_whatever_the_order_of_rows() -> None:
    columns = [
        {"name": "at", "is_time": True, "is_number": False},
        {"name": "n", "is_time": False, "is_number": True},
    ]
    rows = [["2024-01-02", "2"], ["2024-01-01", "1"], ["2024-01-03", "NaN"], ["2024-01-05", "4"]]
    made = line_charts({"columns": columns, "rows": rows})
    assert 'points="4.0,107.0 202.0,74.0"' in made
    assert made.count("<circle") == 1
    assert "3 points from 2024-01-01 00:00:00 to 2024-01-05 00:00:00" in made
    assert line_charts({"columns": columns, "rows": rows[:1]}) == ""


# -- a file ---------------------------------------------------------------------------------------


def test_a_file_has_all_rows(pages: SeenPages) -> None:
    statement = "SELECT n, CASE WHEN n > 1 THEN 'a,\"' END AS t FROM generate_series(1, 5000) AS n"
    answer = pages.get(f"{PAGE}.csv", statement=statement)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/csv")
    assert "attachment" in answer.headers["content-disposition"]
    rows = list(csv.reader(io.StringIO(answer.text)))
    assert rows[:3] == [["n", "t"], ["1", ""], ["2", 'a,"']]
    assert len(rows) == 5001


def test_a_file_is_whole_or_refused(pages: SeenPages) -> None:
    for statement, words in (
        ("SELECT n, 1 / (n - 4000) FROM generate_series(1, 5000) AS n", "division by zero"),
        ("SELECT FROM generate_series(1, 100001)", "gives no rows"),
        ("SELECT n FROM generate_series(1, 100001) AS n", "more than 100,000 rows"),
        ("SELECT repeat('x', n) FROM (VALUES (2000000)) AS v (n)", "a value of more than"),
        ("", "give a statement"),
    ):
        answer = pages.get(f"{PAGE}.csv", statement=statement)
        assert answer.status_code == 400, statement
        assert words in text_of(answer)
    assert pages.get("/pipelines/wheel/log.csv").status_code == 404


def test_a_file_ends_in_time_whatever_its_rows_set(
    pages: SeenPages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_page, "SECONDS", 1.0)
    statement = (
        "SELECT set_config('statement_timeout', '0', false), CASE WHEN n > 1000 THEN pg_sleep(60) "
        "END FROM generate_series(1, 3000) AS n"
    )
    began = time.monotonic()
    answer = pages.get(f"{PAGE}.csv", statement=statement)
    assert (answer.status_code, "stopped after 1 s" in text_of(answer)) == (400, True)
    assert time.monotonic() - began < 20


# -- limits ---------------------------------------------------------------------------------------


def test_rows_values_and_errors_have_limits(pages: SeenPages) -> None:
    many = asked(pages, "SELECT n FROM generate_series(1, 1000000) AS n")
    assert (len(many["rows"]), many["is_cut"]) == (1000, True)
    exactly = asked(pages, "SELECT n FROM generate_series(1, 1000) AS n")
    assert (len(exactly["rows"]), exactly["is_cut"]) == (1000, False)
    wide = asked(pages, "SELECT repeat('x', n) FROM (VALUES (10000000)) AS v (n)")
    assert (len(wide["rows"][0][0]), wide["shortened"]) == (4001, 1)
    both = asked(pages, "SELECT repeat('x', 5000) FROM generate_series(1, 1000000)")
    assert both["is_cut"]
    assert sum(len(row[0]) for row in both["rows"]) < 5_000_000
    part = "SELECT " + ", ".join(["repeat('x', 4000)"] * 20)
    parts = ", ".join(f"a AS a{n}" for n in range(30))
    one = asked(pages, f"WITH a AS MATERIALIZED ({part}) SELECT * FROM {parts}")
    assert (len(one["rows"]), one["is_cut"]) == (1, False)  # more than a page has room for, but all
    wrong = asked(pages, "SELECT repeat('x', n)::int FROM (VALUES (10000000)) AS v (n)")
    assert wrong["state"] == "failed"
    assert len(wrong["words"]) < 2500
    late = asked(pages, "SELECT repeat('x', n)::int FROM generate_series(1000000, 1000000) AS n")
    assert (late["state"], len(late["words"]) < 2500) == ("failed", True)
    constant = asked(pages, "SELECT 1 WHERE random()::text = repeat('x', 1000000)")
    assert (constant["state"], len(constant["plan"]) < 5000) == ("done", True)


def test_the_error_of_a_file_has_a_limit(schema: Schema) -> None:
    """It quotes a constant, before any row."""
    limits = AnswerLimits(seconds=30, characters=10)
    with (
        pytest.raises(UsageError) as refused,
        ask(schema.url, "SELECT repeat('x', 1000000)::int", schema.name, limits) as question,
    ):
        next(question.rows(10, 10))
    assert len(str(refused.value)) < 2500


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT pg_sleep(60)",
        "SELECT count(*) FROM generate_series(1, 1000000000000)",
        "SELECT pg_sleep(0.2), n FROM generate_series(1, 1000) AS n",
        "SELECT set_config('statement_timeout', '0', n < 0), pg_sleep(60) "
        "FROM generate_series(1, 1000) AS n",
    ],
)
def test_a_statement_that_runs_for_long_is_stopped(
    pages: SeenPages, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    monkeypatch.setattr(sql_page, "SECONDS", 0.5)
    began = time.monotonic()
    found = asked(pages, statement)
    assert found["state"] == "failed"
    assert "stopped after 0.5 s" in found["words"]
    assert time.monotonic() - began < 10


def test_few_statements_run_at_a_time(pages: SeenPages, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = threading.BoundedSemaphore(1)
    monkeypatch.setattr(sql_page, "RUNNING", taken)
    monkeypatch.setattr(sql_page, "WAIT_SECONDS", 0.01)
    with taken:
        assert "run already" in asked(pages, "SELECT 1")["words"]
        assert pages.get("/pipelines/wheel").status_code == 200
    assert asked(pages, "SELECT 1")["state"] == "done"


# -- other sites ----------------------------------------------------------------------------------


def test_a_link_of_another_site_does_not_run(pages: SeenPages) -> None:
    other = {"sec-fetch-mode": "navigate"}
    for site in ("cross-site", "same-site"):
        answer = pages.get(PAGE, {**other, "sec-fetch-site": site}, statement="SELECT 1/0")
        assert answer.status_code == 200
        assert "has not run" in text_of(answer)
        assert "SELECT 1/0" in text_of(answer)
        assert "<button" in answer.text
        file = pages.get(f"{PAGE}.csv", {**other, "sec-fetch-site": site}, statement="SELECT 1/0")
        assert (file.status_code, file.headers["location"]) == (
            303,
            f"{PAGE}?statement=SELECT+1%2F0",
        )
    for site in ("same-origin", "none"):
        answer = pages.get(PAGE, {**other, "sec-fetch-site": site}, statement="SELECT 1/0")
        assert "division by zero" in text_of(answer)


def test_over_plain_http_only_the_page_itself_runs_a_statement(pages: SeenPages) -> None:
    """Browsers say nothing there but the page that they come from, and that only if it wants."""
    browser = {"user-agent": "Mozilla/5.0 (X11; Linux x86_64)"}
    for headers, runs in (
        (browser, False),
        ({**browser, "referer": "http://evil.example/"}, False),
        ({**browser, "referer": f"http://evil.example/{pages.at('/')}"}, False),
        ({**browser, "referer": pages.at(PAGE)}, True),
        ({"referer": "http://evil.example/"}, False),
        ({}, True),  # a program
    ):
        for path in (PAGE, f"/api{PAGE}"):
            text = pages.get(path, headers, statement="SELECT 1/0").text
            assert ("division by zero" in text) == runs, (headers, path)
        file = pages.get(f"{PAGE}.csv", headers, statement="SELECT 1/0")
        assert file.status_code == (400 if runs else 303), headers


# -- attempts -------------------------------------------------------------------------------------


@pytest.fixture
def roles(schema: Schema) -> Iterator[Roles]:
    """The roles, and a login of each that has `_eve` at its end."""
    migrate(schema.url, schema.name)
    made = make_roles(schema.url, schema.name)
    logins = [f"{role}_eve" for role in made]
    with psycopg.connect(schema.url, autocommit=True) as connection:
        for role, login in zip(made, logins, strict=True):
            run(connection, "CREATE ROLE {} LOGIN PASSWORD {}", login, sql.Literal(PASSWORD))
            run(connection, "GRANT {} TO {}", role, login)
    yield made
    with psycopg.connect(schema.url, autocommit=True) as connection:
        for role in (*logins, *made):
            run(connection, "DROP OWNED BY {} CASCADE", role)
        for role in (*logins, *made):
            run(connection, "DROP ROLE {}", role)


def run(connection: psycopg.Connection[Any], text: str, *names: str | sql.Literal) -> None:
    parts = [name if isinstance(name, sql.Literal) else sql.Identifier(name) for name in names]
    connection.execute(sql.SQL(text).format(*parts))


def as_login(schema: Schema, role: str) -> str:
    return re.sub("//.*?@", f"//{role}_eve:{quote(PASSWORD)}@", schema.url, count=1)


ATTEMPTS = {
    "DELETE FROM timer": "gives no rows",
    "DELETE FROM timer RETURNING 1": "read-only|cannot be read|permission denied",
    "WITH x AS (DELETE FROM timer RETURNING 1) SELECT * FROM x": "data-modifying|permission denied",
    "SELECT 1; DELETE FROM timer": "multiple commands",
    "COMMIT": "gives no rows",
    "COPY watermarks TO STDOUT": "gives no rows",
    "COPY watermarks TO PROGRAM 'cat'": "gives no rows|permission denied",
    "COPY (SELECT 1) TO '/tmp/x'": "gives no rows|permission denied",
    "DO $$BEGIN END$$": "gives no rows",
    "SELECT 1) AS a (b); DELETE FROM timer; SELECT (1": "syntax error|multiple commands",
    "SELECT 1) AS a (b) UNION SELECT * FROM (VALUES (1)": "syntax error",
    "SELECT set_config('role', '{owner}', false)": "permission denied",
    "SELECT set_config('session_authorization', '{owner}', false)": "permission denied",
    "SELECT set_config('transaction_read_only', 'off', false)": "cannot set transaction",
    "SELECT nextval('request_id_seq')": "read-only|permission denied",
    "SELECT * FROM peer_secret": "permission denied",
    "SELECT rolpassword FROM pg_authid": "permission denied",
    "SELECT pg_read_file('/etc/passwd')": "reads files of the server",
    "SELECT pg_ls_dir('.')": "reads files of the server",
    "SELECT lo_import('/etc/passwd')": "may reach other sessions",
    "SELECT pg_advisory_lock(1)": "may reach other sessions",
    "SELECT pg_try_advisory_xact_lock(1)": "may reach other sessions",
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity": "may reach other sessions",
    "SELECT query_to_xml('SELECT pg_advisory_lock(1)', true, true, '')": "may reach other",
    "SELECT pg_logical_emit_message(false, 'a', 'b')": "may reach other sessions",
    "SELECT * FROM timer FOR UPDATE": "read-only|permission denied",
    "SELECT send('words', '1')": "permission denied|read-only|does not exist|no stream",
    "SELECT evil()": "read-only|permission denied",
    "SELECT 1 INTO TEMP t": "gives no rows|cannot be read",
    "LISTEN x": "gives no rows",
    "EXPLAIN ANALYZE SELECT 1": "cannot be read as a table",
    "SELECT * FROM watermrks": "Did you mean watermarks",
}


async def test_nothing_can_be_changed_or_reached(
    postgres: PostgresSite, schema: Schema, roles: Roles, pages_of: PagesOf
) -> None:
    """Also by a function that another login has made, with the rights of that login."""
    await Owner.take(postgres.store)
    with psycopg.connect(schema.url, autocommit=True) as connection:
        run(
            connection,
            "CREATE FUNCTION public.evil() RETURNS int LANGUAGE sql SECURITY DEFINER AS "
            "'DELETE FROM {}.placement_event RETURNING 1'",
            schema.name,
        )
        run(connection, "ALTER FUNCTION public.evil() OWNER TO {}", f"{roles.owner}_eve")
    before = schema.query(
        "SELECT count(*) FROM {placement_event}", placement_event="placement_event"
    )
    reader = pages_of(as_login(schema, roles.reader), BOB)
    assert asked(reader, "SELECT count(*) FROM watermarks")["state"] == "done"
    for statement, words in ATTEMPTS.items():
        found = asked(reader, statement.replace("{owner}", roles.owner))
        assert found["state"] == "failed", statement
        assert any(part in found["words"] for part in words.split("|")), (statement, found["words"])
    assert before == schema.query(
        "SELECT count(*) FROM {placement_event}", placement_event="placement_event"
    )
    mender = pages_of(schema.url)  # a superuser, where another login has made a function
    assert "has made" in asked(mender, "SELECT 1")["words"]


# -- who may ask ----------------------------------------------------------------------------------


def test_a_viewer_asks_with_the_rights_of_a_reader_only(
    schema: Schema, roles: Roles, pages_of: PagesOf
) -> None:
    def state(url: str, access: ViewerAccess = BOB, **options: Any) -> tuple[str, str]:
        found = asked(pages_of(url, access, **options), "SELECT 1")
        return found["state"], found["words"]

    reader = as_login(schema, roles.reader)
    assert state(reader) == ("done", "")
    for login in (roles.operator, roles.worker, roles.owner):
        off, words = state(as_login(schema, login))
        assert off == "off"
        assert "more rights than a reader" in words
        assert "millwheel migrate PIPELINE --roles" in words
    off, words = state(schema.url)
    assert (off, "it is a superuser" in words) == ("off", True)
    off, words = state(reader, redact=True)
    assert (off, "--redact" in words) == ("off", True)
    assert state(as_login(schema, roles.owner), ViewerAccess(guests=Viewer("ann", Level.MEND)))[
        0
    ] == ("done")
    with psycopg.connect(schema.url, autocommit=True) as connection:
        login = f"{roles.reader}_eve"
        for right, taken, words in (
            ("GRANT pg_read_server_files TO {}", "REVOKE pg_read_server_files FROM {}", "pg_read_"),
            ("ALTER ROLE {} CREATEROLE", "ALTER ROLE {} NOCREATEROLE", "it may make roles"),
        ):
            run(connection, right, login)
            off, said = state(reader)
            assert (off, words in said) == ("off", True)
            run(connection, taken, login)
        names = (schema.name, login)
        run(connection, "GRANT UPDATE (paused) ON {}.computation TO {}", *names)
        assert "it may change wheel.computation" in state(reader)[1]
        run(connection, "REVOKE UPDATE (paused) ON {}.computation FROM {}", *names)
        run(connection, "GRANT SELECT ON {}.peer_secret TO {}", *names)
        assert "the secret of the workers" in state(reader)[1]
        run(connection, "REVOKE SELECT ON {}.peer_secret FROM {}", *names)
        run(connection, "GRANT {} TO {} WITH INHERIT FALSE", roles.worker, login)
        assert state(reader)[0] == "off"  # it could take the role
        run(connection, "REVOKE {} FROM {}", roles.worker, login)
    assert state(reader)[0] == "done"
    answer = pages_of(schema.url, BOB).get(f"{PAGE}.csv", statement="SELECT 1")
    assert (answer.status_code, "more rights" in text_of(answer)) == (400, True)


def test_pages_of_one_pipeline_tell_nothing_of_another(schema: Schema, pages_of: PagesOf) -> None:
    assert asked(pages_of(schema.url, pipeline="wheel"), "SELECT 1")["state"] == "done"
    migrate(schema.url, "hidden_shop")
    pages = pages_of(schema.url, pipeline="wheel")
    found = asked(pages, "SELECT 1")
    assert (found["state"], "may also read other pipelines" in found["words"]) == ("off", True)
    for path in (PAGE, f"/api{PAGE}", f"{PAGE}.csv"):
        assert "hidden_shop" not in pages.get(path, statement="SELECT 1").text
    assert asked(pages_of(schema.url), "SELECT 1")["state"] == "done"
