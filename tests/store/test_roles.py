"""The roles of a pipeline: a reader reads, an operator asks, a worker works, and none can do
more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import errors, sql
from psycopg.conninfo import make_conninfo

from millwheel import Pipeline, Table
from millwheel.errors import StoreError, StoreUnavailable, UsageError
from millwheel.runtime.engine import Engine
from millwheel.runtime.environment import Options
from millwheel.store.address import StoreAddress
from millwheel.store.console import administration
from millwheel.store.console.asking import Actor, Asking
from millwheel.store.console.inspection import inspect
from millwheel.store.console.migrate import migrate, require_version
from millwheel.store.console.outputs import switch_outputs
from millwheel.store.console.roles import CALLED, Roles, make_roles, roles_of
from millwheel.store.console.selection import select
from millwheel.store.copies.forks import fork
from millwheel.store.copies.publishing import list_published, publish
from millwheel.store.copies.replacing import restore
from millwheel.store.copies.savepoints import make_savepoint
from millwheel.store.copies.switching import Takeover, switch
from millwheel.store.postgres.buckets import tables_of
from millwheel.store.postgres.schema import metadata
from millwheel.store.postgres.statements import composed
from millwheel.store.postgres.store import PostgresStore
from tests.support.pipelines import QUICK, Tally, script
from tests.support.store_sites import Schema
from tests.support.values import ITEMS, TALLY, Counted, items, key_of, time_of

pytestmark = pytest.mark.newest

ME = Actor("ada", "why not")


PASSWORD = "a password of the tests"


@pytest.fixture
def roles(schema: Schema) -> Iterator[Roles]:
    """The roles, and a login of each, since a session's own options would not survive."""
    migrate(schema.url, schema.name)
    made = make_roles(schema.url, schema.name)
    for role in made:
        log_in(schema, login_of(role), role)
    yield made
    drop_roles(schema, *map(login_of, made), *made)


def log_in(schema: Schema, login: str, role: str | None = None, more: str = "") -> None:
    """Make a login, with a role."""
    with psycopg.connect(schema.url, autocommit=True) as connection:
        text = f"CREATE ROLE {{}} LOGIN PASSWORD {{}} {more}"
        connection.execute(sql.SQL(text).format(sql.Identifier(login), PASSWORD))
        if role is not None:
            grant = sql.SQL("GRANT {} TO {}").format(sql.Identifier(role), sql.Identifier(login))
            connection.execute(grant)


def drop_roles(schema: Schema, *roles: str) -> None:
    with psycopg.connect(schema.url, autocommit=True) as connection:
        there = [
            role
            for role in roles
            if connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [role]).fetchall()
        ]
        for end in ("DROP OWNED BY {} CASCADE", "DROP ROLE {}"):
            for role in there:
                connection.execute(sql.SQL(end).format(sql.Identifier(role)))


def login_of(role: str) -> str:
    return f"{role}_ada"


def under(schema: Schema, role: str) -> str:
    """The address of the store for a login with a role."""
    return url_of(schema, login_of(role))


def url_of(schema: Schema, login: str) -> str:
    url = make_conninfo(schema.url, user=login, password=PASSWORD)
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT current_user").fetchone() == (login,)
    return url


def refused(url: str, schema: Schema, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(schema.name)))
        with pytest.raises(errors.InsufficientPrivilege):
            connection.execute(sql.SQL(statement))


WRITES = (
    "INSERT INTO state SELECT * FROM state",
    "DELETE FROM state",
    "UPDATE key_interval SET sequencer = 1",
    "UPDATE key_interval SET wanted_by = NULL",
    "UPDATE commit_record SET acked = NULL",
    "DELETE FROM request",
    "UPDATE request SET actor = 'somebody else'",
    "DROP TABLE dead_letter",
    "CREATE TABLE mine (a int)",
    "SELECT * FROM peer_secret",
)


def test_a_reader_reads_and_can_do_nothing_else(schema: Schema, roles: Roles) -> None:
    url = under(schema, roles.reader)
    with inspect(url) as inspection:
        assert inspection.status(schema.name).schema_current
        assert inspection.letters(schema.name).newest(10) == []
    for statement in (
        *WRITES,
        "DELETE FROM dead_letter",
        "UPDATE computation SET paused = true",
        "UPDATE pipeline SET withholds = true",
    ):
        refused(url, schema, statement)


def test_what_runs_with_the_rights_of_the_owner_is_called_by_its_roles_only(
    schema: Schema, roles: Roles
) -> None:
    allowed = """
    SELECT p.proname, coalesce(r.rolname, 'PUBLIC')
    FROM pg_proc AS p
    CROSS JOIN aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a
    LEFT JOIN pg_roles AS r ON r.oid = a.grantee
    WHERE p.pronamespace = %s::regnamespace AND p.prosecdef AND a.grantee <> p.proowner
    """
    with psycopg.connect(schema.url) as connection:
        given = set(connection.execute(allowed, [schema.name]).fetchall())
    assert given == {
        (function, getattr(roles, caller))
        for function, callers in CALLED.items()
        for caller in callers
    }
    refused(under(schema, roles.reader), schema, "SELECT forget_requests()")


def test_a_reader_reads_the_tables_to_come(schema: Schema, roles: Roles) -> None:
    """Also those that the login that made the roles makes by hand."""
    with psycopg.connect(schema.url, autocommit=True) as owner:
        owner.execute(schema.compose("CREATE TABLE {later} (a int)", later="later"))
    with psycopg.connect(under(schema, roles.reader)) as reader:
        assert (
            reader.execute(schema.compose("SELECT * FROM {later}", later="later")).fetchall() == []
        )


def read_as(url: str, schema: Schema) -> None:
    with inspect(url) as inspection:
        inspection.status(schema.name)


def pause_as(url: str, schema: Schema) -> None:
    administration.pause(url, schema.name, paused=True, actor=ME)


def work_as(url: str, schema: Schema) -> None:
    require_version(url, schema.name, address=StoreAddress(url=url), migrate_now=False)


@pytest.mark.parametrize("use", [read_as, work_as])
def test_a_login_without_a_role_is_told_which_one_it_needs(
    schema: Schema, roles: Roles, use: Callable[[str, Schema], None]
) -> None:
    log_in(schema, "eve_without_a_role")
    try:
        with pytest.raises(StoreError) as refused:
            use(url_of(schema, "eve_without_a_role"), schema)
    finally:
        drop_roles(schema, "eve_without_a_role")
    assert not isinstance(refused.value, StoreUnavailable)
    assert "permission denied for" in str(refused.value)
    assert "`millwheel migrate PIPELINE --roles`, then GRANT DATABASE_PIPELINE_worker TO" in str(
        refused.value
    )


def test_a_pipeline_without_a_role_for_this_login_may_be_there(
    schema: Schema, roles: Roles
) -> None:
    log_in(schema, "eve_without_a_role")
    try:
        with pytest.raises(
            UsageError, match=r"no pipeline .* that this login has a role of; it may"
        ):
            pause_as(url_of(schema, "eve_without_a_role"), schema)
    finally:
        drop_roles(schema, "eve_without_a_role")


def test_an_operator_asks_and_pauses(schema: Schema, roles: Roles) -> None:
    url = under(schema, roles.operator)
    with psycopg.connect(schema.url, autocommit=True) as owner:
        for number, (name, kind) in enumerate([("check", "computation"), ("pays", "injector")], 1):
            owner.execute(
                schema.compose(
                    "INSERT INTO {c} (id, name, kind, version, state, upstream, paused) "
                    "OVERRIDING SYSTEM VALUE VALUES (%s, %s, %s, 1, '{{}}', '[]', false)",
                    c="computation",
                ),
                [number, name, kind],
            )
        owner.execute(
            schema.compose(
                "INSERT INTO {d} (slot, computation, stream, key, value, place, error, traceback, "
                "attempts, stamp) VALUES (1, 1, 's', '1', '1', 'here', 'no', '', 1, 0), (1, 1, "
                "'s', '1', '1', 'here', 'no', '', 1, 0)",
                d="dead_letter",
            )
        )
    with administration.transaction(url) as connection:
        asked = Asking(connection, schema.name)
        batch = asked.ask(ME, "delete_state", "check", 1, {})
        assert asked.retry(ME, [1])[1] == 1
        assert asked.discard(ME, [1, 2]) == [2]
        assert asked.withdraw(ME, batch) == 1
    assert administration.pause(url, schema.name, actor=ME).changed == ["pays"]
    with psycopg.connect(schema.url, autocommit=True) as owner:
        text = "INSERT INTO {p} (name, gc_watermark) VALUES ('wheel', 0)"
        owner.execute(schema.compose(text, p="pipeline"))
    assert switch_outputs(url, schema.name, on=False, actor=ME).changed
    refused(url, schema, "UPDATE pipeline SET gc_watermark = 1")
    for statement in WRITES:
        refused(url, schema, statement)


def test_roles_are_made_again_for_what_has_come(schema: Schema, roles: Roles) -> None:
    assert make_roles(schema.url, schema.name) == roles


def test_who_may_make_no_roles_is_told_what_is_needed(schema: Schema, roles: Roles) -> None:
    with pytest.raises(StoreError, match="Run this as the owner of the schema"):
        make_roles(under(schema, roles.operator), schema.name)


# -- workers and owners -----------------------------------------------------------------------


def counting(schema: Schema, *numbers: int, name: str = "tally") -> Pipeline:
    """Counts items, into a table and a state with a view."""
    pipeline = Pipeline(schema.name, settings=QUICK)
    pipeline.inject(ITEMS, script(ITEMS, items(*numbers)), timestamp=time_of)
    pipeline.add(Tally(), ITEMS.by(key_of), name=name)
    pipeline.sink(TALLY, Table("out", Counted, numbered=True))
    return pipeline


async def run(pipeline: Pipeline, url: str) -> None:
    """Run a pipeline as a login, which afterwards makes a bucket, and may drop all that there
    are."""
    store = await PostgresStore(url, pipeline.name).open()
    engine = Engine(pipeline, store, options=Options(keep_open=True), take_over=True)
    try:
        await engine.start()
        await engine.run()
        await engine.stop()
        await store.open_bucket("source", 77, 0, 100)
        tables = [name for bucket in await store.live_buckets() for name in tables_of(bucket)]
    finally:
        await engine.kill()
        await store.close()
    names = sql.SQL(", ").join(sql.Identifier(pipeline.name, name) for name in tables)
    drop = sql.SQL("SELECT {}(id) FROM {}").format(
        sql.Identifier(pipeline.name, "drop_bucket"), sql.Identifier(pipeline.name, "bucket")
    )
    with psycopg.connect(url) as connection:
        connection.execute(composed("lock_for_drop", tables=names))
        connection.execute(drop)
        connection.rollback()


def owners(schema: Schema) -> dict[str, str]:
    """Each relation of the schema, with its owner."""
    with psycopg.connect(schema.url) as connection:
        rows = connection.execute(
            "SELECT c.relname::text, c.relowner::regrole::text FROM pg_class AS c "
            "JOIN pg_namespace AS n ON n.oid = c.relnamespace "
            "WHERE c.relkind IN ('r', 'v') AND n.nspname = %s",
            [schema.name],
        )
        return dict(rows.fetchall())


async def test_workers_of_several_logins_make_and_drop_what_they_need(
    schema: Schema, roles: Roles
) -> None:
    log_in(schema, "grace", roles.worker)
    try:
        await run(counting(schema, 1, 2), under(schema, roles.worker))
        await run(counting(schema, 1, 2, 3), url_of(schema, "grace"))
        with psycopg.connect(under(schema, roles.reader)) as reader:
            out = schema.compose("SELECT count(*) FROM {out}", out="out")
            assert reader.execute(out).fetchone() == (3,)
        found = owners(schema)
        assert {found["state"], found["watermarks"], found["request"]} == {roles.owner}
        assert {found["out"], found["state_of_tally"]} == {roles.worker}
        assert {found[f"seen_record{bucket}"] for bucket in ("", "_1")} == {roles.owner}
        assert set(found.values()) == {roles.owner, roles.worker}, "nothing is a login's"
    finally:
        drop_roles(schema, "grace")


def test_a_worker_drops_nothing_and_leaves_the_log_of_operators_alone(
    schema: Schema, roles: Roles
) -> None:
    for statement in (
        "DROP TABLE state",
        "DROP TABLE dead_letter",
        "ALTER TABLE key_interval ADD a int",
        "DELETE FROM request",
        "UPDATE request SET actor = 'somebody else'",
        "UPDATE alembic_version SET version_num = '0001'",
        "DROP VIEW watermarks",
        "CREATE ROLE another",
    ):
        refused(under(schema, roles.worker), schema, statement)


CODE = """
CREATE FUNCTION {schema}.evil() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    UPDATE {schema}.request SET actor = 'forged by a worker as ' || current_user;
    RETURN true;
END $$;
CREATE FUNCTION {schema}.fires() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM {schema}.evil(); RETURN NEW; END $$
"""


async def test_a_worker_can_put_no_code_into_what_others_read_or_change(
    schema: Schema, roles: Roles
) -> None:
    """Neither into a table of the pipeline, nor into the buckets that its commits go to."""
    url = under(schema, roles.worker)
    await run(counting(schema, 1), url)
    with psycopg.connect(url, autocommit=True) as worker:
        worker.execute(schema.compose(CODE))
        buckets = [table for table in owners(schema) if table[-1].isdigit()]
        assert len(buckets) >= 7
        for table in (*metadata.tables, *buckets):
            for statement in (
                "CREATE POLICY p ON {table} USING ({schema}.evil())",
                "ALTER TABLE {table} FORCE ROW LEVEL SECURITY",
                "ALTER TABLE {table} ADD CHECK ({schema}.evil())",
                "CREATE RULE r AS ON INSERT TO {table} DO ALSO SELECT {schema}.evil()",
                "CREATE TRIGGER t BEFORE UPDATE ON {table} EXECUTE FUNCTION {schema}.fires()",
                "CREATE INDEX ON {table} (({schema}.evil()))",
            ):
                with pytest.raises(errors.InsufficientPrivilege):
                    worker.execute(schema.compose(statement, table=table))


def test_a_function_that_would_run_in_place_of_the_owners_is_found(
    schema: Schema, roles: Roles
) -> None:
    with psycopg.connect(under(schema, roles.worker), autocommit=True) as worker:
        worker.execute(
            schema.compose(
                "CREATE FUNCTION {f}(integer) RETURNS timestamptz LANGUAGE sql RETURN now()",
                f="micros_to_time",
            )
        )
    url = under(schema, roles.owner)
    for work in (
        lambda: migrate(url, schema.name),
        lambda: administration.drop_pipeline(url, schema.name),
        lambda: administration.remove_computations(url, schema.name, ["tally"]),
    ):
        with pytest.raises(StoreError, match=r"micros_to_time\(integer\).*Nothing was changed"):
            work()


# -- superusers -------------------------------------------------------------------------------


def selected(url: str, *statements: str, pipeline: str | None = None) -> list[tuple[Any, ...]]:
    with select(url, statements, pipeline=pipeline, seconds=5, as_json=False) as answers:
        return [row for answer in answers for row in answer.rows]


def test_sql_does_not_run_code_of_others_as_a_superuser(schema: Schema, roles: Roles) -> None:
    with psycopg.connect(under(schema, roles.worker), autocommit=True) as worker:
        worker.execute(schema.compose(CODE))
        worker.execute(schema.compose("CREATE VIEW {v} AS SELECT {schema}.evil()", v="figures"))
    with pytest.raises(UsageError, match=r"is a superuser.*a login of the pipeline's reader"):
        selected(schema.url, "SELECT count(*) FROM figures")
    log_in(schema, "linus", roles.reader)
    with psycopg.connect(schema.url, autocommit=True) as superuser:
        superuser.execute("GRANT pg_execute_server_program TO linus")
    try:
        with pytest.raises(UsageError, match="may use files and programs of the server"):
            selected(url_of(schema, "linus"), "SELECT count(*) FROM states")
    finally:
        drop_roles(schema, "linus")
    assert selected(under(schema, roles.reader), "SELECT count(*)::text FROM states") == [("0",)]


def test_sql_as_a_superuser_reads_what_only_superusers_have_made(schema: Schema) -> None:
    assert selected(schema.url, "SELECT count(*)::text FROM states") == [("0",)]


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT pg_terminate_backend/**/(1)",
        "SELECT pg_terminate_backend -- the first\n (1)",
        'SELECT U&"pg_\\0074ry_advisory_lock"(1)',
        'SELECT "pg_try_advisory_lock"(1)',
        "SELECT query_to_xml('SELECT pg_term' || 'inate_backend(1)', true, true, '')",
        "SELECT * FROM ts_stat('SELECT pg_term' || 'inate_backend(1)')",
        "SELECT pg_stat_reset()",
        "SELECT pg_stat_statements_reset()",
        "EXPLAIN ANALYZE SELECT pg_reload_conf/* */()",
    ],
)
def test_sql_refuses_what_reaches_other_sessions_however_it_is_written(
    schema: Schema, statement: str
) -> None:
    with pytest.raises(UsageError, match="may reach other sessions"):
        selected(schema.url, statement)


# -- other databases --------------------------------------------------------------------------


def test_pipelines_of_one_name_in_two_databases_share_no_role(
    new_schema: Callable[[int], Schema], schema: Schema
) -> None:
    here, there = (new_schema(schema.version) for _ in range(2))
    assert here.name == there.name
    made = [make_roles(one.url, one.name) for one in (here, there)]
    logins = [f"login_of_{database_of(one)}" for one in (here, there)]
    try:
        assert not {*made[0]} & {*made[1]}
        for one, roles, login in zip((here, there), made, logins, strict=True):
            log_in(one, login, roles.owner)
            query = one.compose("SELECT count(*) FROM {secret}", secret="peer_secret")
            with psycopg.connect(url_of(one, login)) as connection:
                assert connection.execute(query).fetchone() == (0,)
        with psycopg.connect(url_of(there, logins[0])) as stranger:
            for statement in ("SELECT FROM {t}", "DELETE FROM {t}", "LOCK TABLE {t}"):
                with pytest.raises(errors.InsufficientPrivilege), stranger.transaction():
                    stranger.execute(there.compose(statement, t="peer_secret"))
    finally:
        for one, roles, login in zip((here, there), made, logins, strict=True):
            drop_roles(one, login, *roles)


def test_a_role_with_rights_in_another_database_is_not_used(
    new_schema: Callable[[int], Schema], schema: Schema
) -> None:
    here, there = (new_schema(schema.version) for _ in range(2))
    reader = roles_of(database_of(here), here.name).reader
    with psycopg.connect(there.url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(reader)))
        grant = there.compose("GRANT USAGE ON SCHEMA {schema} TO ")
        connection.execute(grant + sql.Identifier(reader))
    try:
        with pytest.raises(
            StoreError, match=f"has rights in the database {database_of(there)} too"
        ):
            make_roles(here.url, here.name)
    finally:
        with psycopg.connect(there.url, autocommit=True) as connection:
            for end in ("DROP OWNED BY {} CASCADE", "DROP ROLE {}"):
                connection.execute(sql.SQL(end).format(sql.Identifier(reader)))


def test_a_long_name_of_a_database_leaves_room_for_the_rest() -> None:
    names = [
        role
        for database in ("d" * 63, "d" * 62 + "e", "db")
        for role in roles_of(database, "p" * 48)
    ]
    assert len({*names}) == 12
    assert max(len(name) for name in names) <= 63
    assert roles_of("db", "shop").reader == "db_shop_reader"


def database_of(schema: Schema) -> str:
    return str(psycopg.conninfo.conninfo_to_dict(schema.url)["dbname"])


async def test_an_owner_migrates_removes_and_drops(schema: Schema, roles: Roles) -> None:
    url = under(schema, roles.owner)
    await run(counting(schema, 1), under(schema, roles.worker))
    migrate(url, schema.name)
    assert set(owners(schema).values()) == {roles.owner, roles.worker}
    assert administration.pause(url, schema.name, actor=ME).changed == ["items_injector"]
    administration.drop_pipeline(url, schema.name)
    assert owners(schema) == {}


async def test_copies_have_the_rights_of_their_origin(schema: Schema, roles: Roles) -> None:
    """The owner makes them, with CREATE on the database; workers run a fork, readers read."""
    url = under(schema, roles.owner)
    await run(counting(schema, 1, 2), under(schema, roles.worker))
    with pytest.raises(StoreError, match=f"_{schema.name}_owner.*CREATE on the database"):
        make_savepoint(url, schema.name, "one")
    database = sql.Identifier(database_of(schema))
    with psycopg.connect(schema.url, autocommit=True) as connection:
        for role in (roles.owner, roles.worker):
            grant = sql.SQL("GRANT CREATE ON DATABASE {} TO {}")
            connection.execute(grant.format(database, sql.Identifier(role)))
    with pytest.raises(StoreError, match="may not copy"):
        fork(under(schema, roles.worker), schema.name, "forked")
    make_savepoint(url, schema.name, "one")
    fork(url, f"{schema.name}@one", "forked")
    copy = Schema(schema.url, "forked", schema.version)
    assert owners(copy) == owners(schema)
    await run(counting(copy, 1, 2, 3), under(schema, roles.worker))
    with psycopg.connect(under(schema, roles.reader)) as reader:
        for name, found in ((f"{schema.name}@one", 2), ("forked", 3)):
            out = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(name, "out"))
            assert reader.execute(out).fetchone() == (found,)
    with (
        pytest.raises(errors.InsufficientPrivilege),
        psycopg.connect(under(schema, roles.reader)) as reader,
    ):
        reader.execute("DELETE FROM forked.state")
    restored = restore(url, f"{schema.name}@one", actor=ME)
    assert restored.sessions == 0
    await run(counting(schema, 1, 2, 3), under(schema, roles.worker))
    assert owners(copy).keys() == owners(schema).keys()


async def test_readers_keep_their_names_through_a_switch_and_a_restore(
    schema: Schema, roles: Roles
) -> None:
    """The owner publishes and switches. A successor with roles of its own needs its owner's and its
    worker's, too."""
    url, worker = under(schema, roles.owner), under(schema, roles.worker)
    await run(counting(schema, 1, 2), worker)
    with pytest.raises(StoreError, match="may not publish"):
        publish(url, schema.name, "shown")
    with psycopg.connect(schema.url, autocommit=True) as connection:
        grant = sql.SQL("GRANT CREATE ON DATABASE {} TO {}")
        names = (sql.Identifier(database_of(schema)), sql.Identifier(roles.owner))
        connection.execute(grant.format(*names))
    assert "out" in publish(url, schema.name, "shown", actor=ME).made

    def read() -> int:
        with psycopg.connect(under(schema, roles.reader)) as reader:
            return int(reader.execute("SELECT count(*) FROM shown.out").fetchall()[0][0])

    fork(url, schema.name, "forked")
    await run(counting(Schema(schema.url, "forked", schema.version), 1, 2, 3), worker)
    assert read() == 2
    switch(url, Takeover(schema.name, "forked"), actor=ME)
    assert read() == 3

    migrate(schema.url, "third")
    others = make_roles(schema.url, "third")
    try:
        log_in(schema, "third_worker", others.worker)
        third = Schema(schema.url, "third", schema.version)
        await run(counting(third, 1, 2, 3, 4), url_of(schema, "third_worker"))
        with pytest.raises(UsageError, match="no pipeline 'third' that this login has a role of"):
            switch(url, Takeover("forked", "third"), wait_seconds=0.0)
        with psycopg.connect(schema.url, autocommit=True) as connection:
            for role in (others.owner, others.worker):
                grant = sql.SQL("GRANT {} TO {}")
                names = (sql.Identifier(role), sql.Identifier(login_of(roles.owner)))
                connection.execute(grant.format(*names))
        switch(url, Takeover("forked", "third"), actor=ME)
        assert read() == 4
        switch(url, Takeover("third", schema.name), actor=ME)
    finally:
        drop_roles(schema, "third_worker", *others)
    assert read() == 2
    make_savepoint(url, schema.name, "one")
    restore(url, f"{schema.name}@one", actor=ME)
    assert read() == 2
    assert {one.pipeline for one in list_published(url)} == {schema.name}


async def test_whoever_owned_the_schema_goes_on(schema: Schema) -> None:
    """No superuser is needed; what was there already changes hands."""
    database = database_of(schema)
    roles = roles_of(database, schema.name)
    log_in(schema, "linus", more="CREATEROLE")
    with psycopg.connect(schema.url, autocommit=True) as connection:
        connection.execute(
            sql.SQL("GRANT CREATE ON DATABASE {} TO linus").format(sql.Identifier(database))
        )
        connection.execute(schema.compose("DROP SCHEMA {schema} CASCADE"))
    url = url_of(schema, "linus")
    try:
        migrate(url, schema.name)
        await run(counting(schema, 1), url)
        assert make_roles(url, schema.name) == roles
        await run(counting(schema, 1, 2), url)
        log_in(schema, login_of(roles.worker), roles.worker)
        await run(counting(schema, 1, 2, 3), under(schema, roles.worker))
        migrate(url, schema.name)
        assert set(owners(schema).values()) == {roles.owner, roles.worker}
    finally:
        drop_roles(schema, "linus", login_of(roles.worker), *roles)


def test_an_earlier_bucket_changes_hands_with_its_parent(schema: Schema) -> None:
    migrate(schema.url, schema.name)
    with psycopg.connect(schema.url, autocommit=True) as connection:
        connection.execute(
            schema.compose(
                "CREATE TABLE {new} () INHERITS ({old})", new="production_9", old="production"
            )
        )
    roles = make_roles(schema.url, schema.name)
    try:
        assert owners(schema)["production_9"] == roles.owner
    finally:
        drop_roles(schema, *roles)
