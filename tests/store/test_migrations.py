"""The schema: made by migrations, equal to its description, known to nobody but the store."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from psycopg import sql
from sqlalchemy import MetaData, create_engine, pool

from millwheel.core.model import record_id
from millwheel.errors import SchemaBehind, StoreError, StoreUnavailable
from millwheel.store.address import StoreAddress
from millwheel.store.console.migrate import FIRST, HEAD, migrate, require_version, schema_version
from millwheel.store.port.seen import SeenIds
from millwheel.store.postgres.rows import ROW_BYTES
from millwheel.store.postgres.schema import KEY_TEXT, metadata
from tests.support.servers import VERSIONS
from tests.support.store_sites import Owner, PostgresSite, Schema, as_chunks
from tests.support.store_sites import look as look_at

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=VERSIONS, ids=[f"pg{version}" for version in VERSIONS])
def empty(request: pytest.FixtureRequest, postgres_url: Callable[[int], str]) -> Iterator[Schema]:
    """A schema that is not there yet, under a name that must be quoted."""
    schema = Schema(postgres_url(request.param), "order", request.param)
    yield schema
    with psycopg.connect(schema.url, autocommit=True) as connection:
        connection.execute("SET client_min_messages = warning")
        connection.execute(
            sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema.name))
        )


def address_of(schema: Schema) -> StoreAddress:
    return StoreAddress.parse(schema.url)


def _drift(schema: Schema) -> list[Any]:
    """Where the migrated schema differs from `millwheel.store.postgres.schema`."""
    described = MetaData()
    for table in metadata.tables.values():
        table.to_metadata(described, schema=schema.name)
    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(schema.url, options="-c search_path="),
        poolclass=pool.NullPool,
    )
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "include_schemas": True,
                "include_name": lambda name, kind, _: kind != "schema" or name == schema.name,
                "version_table_schema": schema.name,
                "compare_type": True,
                "compare_server_default": True,
            },
        )
        found: list[Any] = compare_metadata(context, described)
    engine.dispose()
    return found


def test_the_migrated_schema_is_the_described_one(empty: Schema) -> None:
    migrate(empty.url, empty.name)
    assert _drift(empty) == []


@pytest.mark.parametrize(
    "change",
    [
        'ALTER TABLE {log} ADD COLUMN "more" text',
        "ALTER TABLE {taken_record} ALTER COLUMN number TYPE integer",
        "ALTER TABLE {log} ALTER COLUMN source SET NOT NULL",
        "COMMENT ON COLUMN {log}.source IS 'another'",
        "DROP INDEX {log_interval_live}",
        "CREATE TABLE {more} (x integer)",
    ],
)
def test_a_drift_is_seen(schema: Schema, change: str) -> None:
    names = {name: name for name in re.findall(r"{(\w+)}", change)}
    schema.query(change, **names)
    assert _drift(schema) != []


def test_keys_are_compared_byte_by_byte(empty: Schema) -> None:
    """Alembic does not compare collations; the PyPI builds have no ICU."""
    migrate(empty.url, empty.name)
    rows = empty.query(
        "SELECT c.relname, a.attname FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = "
        "a.attrelid JOIN pg_collation AS l ON l.oid = a.attcollation WHERE c.relnamespace = "
        "%s::regnamespace AND c.relkind = 'r' AND l.collname = 'C'",
        '"order"',
    )
    described = {
        (table.name, column.name)
        for table in metadata.tables.values()
        for column in table.columns
        if getattr(getattr(column.type, "item_type", column.type), "collation", None)
        == KEY_TEXT.collation
    }
    assert set(rows) == described
    assert {("state", "key"), ("state", "entry"), ("timer", "tag")} <= described


def test_first_and_head_are_the_ends_of_the_revisions() -> None:
    config = Config()
    config.set_main_option("script_location", "millwheel:migrations")
    config.set_main_option("path_separator", "os")
    scripts = ScriptDirectory.from_config(config)
    assert scripts.get_heads() == [HEAD]
    assert scripts.get_bases() == [FIRST]


def test_a_schema_tells_its_version(empty: Schema) -> None:
    assert schema_version(empty.url, empty.name) is None
    migrate(empty.url, empty.name)
    assert schema_version(empty.url, empty.name) == HEAD


def test_a_schema_that_is_behind_is_refused_with_the_command(empty: Schema) -> None:
    with pytest.raises(
        SchemaBehind, match=r"is not there.*Run: millwheel migrate \S+ --store '?postgresql://"
    ):
        require_version(empty.url, empty.name, address=address_of(empty), migrate_now=False)
    migrate(empty.url, empty.name)
    require_version(empty.url, empty.name, address=address_of(empty), migrate_now=False)
    empty.query("UPDATE {v} SET version_num = '0000'", v="alembic_version")
    with pytest.raises(SchemaBehind, match=r"is at version 0000.*needs version " + HEAD):
        require_version(empty.url, empty.name, address=address_of(empty), migrate_now=False)


@pytest.mark.parametrize("migrate_now", [False, True])
def test_a_schema_of_a_newer_release_is_left_alone(empty: Schema, migrate_now: bool) -> None:
    migrate(empty.url, empty.name)
    empty.query("UPDATE {v} SET version_num = '9999'", v="alembic_version")
    with pytest.raises(StoreError, match=r"version 9999.*a newer millwheel made it"):
        require_version(empty.url, empty.name, address=address_of(empty), migrate_now=migrate_now)
    with pytest.raises(StoreError, match="a newer millwheel made it"):
        migrate(empty.url, empty.name)
    assert schema_version(empty.url, empty.name) == "9999"


def test_a_schema_is_migrated_where_that_is_allowed(empty: Schema) -> None:
    require_version(empty.url, empty.name, address=address_of(empty), migrate_now=True)
    assert schema_version(empty.url, empty.name) == HEAD
    require_version(empty.url, empty.name, address=address_of(empty), migrate_now=True)


def test_a_server_that_does_not_answer_is_told_so() -> None:
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        schema_version("postgresql:///x?host=/nonexistent", "wheel")


def test_several_processes_may_migrate_at_once(empty: Schema) -> None:
    with ThreadPoolExecutor(4) as workers:
        for done in [workers.submit(migrate, empty.url, empty.name) for _ in range(4)]:
            done.result()
    assert schema_version(empty.url, empty.name) == HEAD
    assert empty.query("SELECT count(*) FROM {v}", v="alembic_version") == [(1,)]


async def test_migrating_again_keeps_everything(postgres: PostgresSite) -> None:
    owner = await Owner.take(postgres.store)
    await owner.write(owner.fill(owner.commit(), 3))
    before = await postgres.states(), await postgres.timers(), await postgres.pending()
    migrate(postgres.schema.url, postgres.schema.name)
    assert (await postgres.states(), await postgres.timers(), await postgres.pending()) == before
    await owner.write(owner.fill(owner.commit(), 3, first=10))


def test_a_schema_from_before_the_first_release_is_left_alone(empty: Schema) -> None:
    migrate(empty.url, empty.name)
    empty.query("UPDATE {v} SET version_num = '0007'", v="alembic_version")
    with pytest.raises(StoreError, match="at version 0007, from before the first release"):
        migrate(empty.url, empty.name)
    assert schema_version(empty.url, empty.name) == "0007"


def test_what_was_kept_for_ever_before_0013_goes(empty: Schema) -> None:
    """Holds of parked keys that are timers, parked letters of removed computations, drained logs,
    and requests that ended workers. All other rows stay."""
    migrate(empty.url, empty.name)
    with psycopg.connect(empty.url, autocommit=True) as connection:
        connection.execute("SET client_min_messages = warning")
        connection.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(empty.name)))
        for statement in (
            "ALTER TABLE dead_letter DROP COLUMN hold CASCADE",
            "ALTER TABLE dead_letter DROP COLUMN version",
            (
                "ALTER TABLE pipeline DROP COLUMN origin, DROP COLUMN copied_at, DROP COLUMN "
                "keep_until, DROP COLUMN restore_point, DROP COLUMN withholds"
            ),
            "ALTER TABLE request DROP CONSTRAINT request_slot, DROP CONSTRAINT request_key",
            "DROP TABLE leader, blocking_item, seen_run, query, worker_end CASCADE",
            "UPDATE alembic_version SET version_num = '0008'",
            (
                "INSERT INTO computation (name, kind, version, state, upstream, paused, "
                "removed_at) VALUES ('here', 'computation', 1, '{}', '[]', false, NULL), ('gone', "
                "'computation', 1, '{}', '[]', false, now())"
            ),
            (
                "INSERT INTO key_interval (id, computation, slot_from, slot_to, sequencer, "
                "generation) VALUES (9, 1, 0, 65536, 1, 1)"
            ),
            (
                "INSERT INTO log VALUES (1, 9, NULL, true), (2, 9, NULL, false), (3, 9, 'a file', "
                "true)"
            ),
            (
                "INSERT INTO timer (slot, computation, key, kind, tag, due, hold, set_at) VALUES "
                "(1, 1, '1', 'watermark', 'millwheel:parked', 9, 3, 1), (1, 1, '1', 'watermark', "
                "'mine', 9, 9, 1)"
            ),
            (
                "INSERT INTO dead_letter (slot, computation, stream, key, value, ts, place, error, "
                "traceback, attempts, stamp, parked) SELECT 1, c.id, 's', '1', '1', 5, '', '', "
                "'', 1, 0, 'failed' FROM computation AS c"
            ),
            "INSERT INTO request (batch, asked_at, actor, reason, verb, computation, slot, key, "
            "due_at) "
            "SELECT 1, now(), '', '', 'retry', 1, 1, k, now() FROM "
            """unnest(ARRAY['k1', '"k\\"1"', '-3', '["a",1]', '1e9']) AS k""",
            (
                "INSERT INTO request (batch, asked_at, actor, reason, verb, due_at) VALUES (2, "
                "now(), '', '', 'pause', now())"
            ),
        ):
            connection.execute(statement)
    migrate(empty.url, empty.name)
    assert empty.query("SELECT tag FROM {t}", t="timer") == [("mine",)]
    assert empty.query("SELECT id FROM {l} ORDER BY id", l="log") == [(2,), (3,)]
    assert empty.query("SELECT computation, parked FROM {d} ORDER BY id", d="dead_letter") == [
        (1, "failed"), (2, None),
    ]  # fmt: skip
    left = [('"k\\"1"',), ("-3",), ('["a",1]',), (None,)]
    assert empty.query("SELECT key FROM {r} ORDER BY id", r="request") == left


async def test_numbers_that_were_rows_become_runs(
    postgres: PostgresSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And rows once more, if the schema goes back. Ids in no order stay as they are."""
    owner = await Owner.take(postgres.store)
    of_source = await postgres.store.open_bucket("source", 7, 0, 1000)
    named = await postgres.store.open_bucket("named", 0, 0, 10)
    commit = owner.fill(owner.commit(), 3)
    numbers = {3: [*range(40, 9_000)], 1 << 60: [5, 7, 8, 2_000]}
    for log, of_log in numbers.items():
        commit.seen[commit.bucket].add_numbers(owner.computation, log, of_log)
    commit.seen[of_source.id] = owner.numbers(8, 1, 9, log=7)
    commit.seen[named.id] = SeenIds([owner.seen(1)])
    commit.seen[commit.bucket].rows = [(1, owner.computation, b"\xff" * 16)]
    await owner.write(commit)
    asked = {**{log: range(10_000) for log in numbers}, 1: range(9), 7: range(9)}

    async def found() -> list[Any]:
        look = postgres.store.look_up_numbers
        runs = [await look(b, owner.computation, asked) for b in (commit.bucket, of_source.id)]
        return [(await look_at(postgres, owner)).seen, *runs]

    before = await found()
    schema = postgres.schema
    with monkeypatch.context() as patch:
        patch.setattr(command, "upgrade", lambda config, _: command.downgrade(config, "0017"))
        migrate(schema.url, schema.name)
    assert schema_version(schema.url, schema.name) == "0017"
    rows = await postgres.query("SELECT count(*) FROM {t}", t="seen_record")
    assert rows == [(1 + 1 + 3 + 3 + sum(map(len, numbers.values())),)]
    migrate(schema.url, schema.name)
    assert await found() == before
    assert await postgres.query("SELECT count(*) FROM {t}", t="seen_record") == [(2,)]
    await owner.write(owner.fill(owner.commit(), 3, first=10))


async def test_rows_become_columns(postgres: PostgresSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """And rows once more, if the schema goes back."""
    owner = await Owner.take(postgres.store)
    for count, first in ((3, 0), (1500, 10)):
        commit = owner.fill(owner.commit(), count, first=first)
        commit.states += [owner.state("key 1", count, "m/é"), owner.state("key 2", None)]
        commit.states += [owner.state(f"large {n}", 400_000 * "x") for n in range(9)]
        large = [owner.production("key 1", 400_000 * "y") for _ in range(9)]
        commit.productions = as_chunks([*commit.productions, *large])
        commit.stragglers = [owner.straggler("a", 1)]
        await owner.write(commit)
    (link, *_) = owner.links.values()
    assert await postgres.store.fold(link.interval_id, link.sequencer, 0, 1)
    schema = postgres.schema

    async def found() -> list[Any]:
        stored = [p async for p in postgres.store.read_productions(owner.log(), 0)]
        return [await look_at(postgres, owner), stored, await postgres.pending()]

    before = await found()
    with monkeypatch.context() as patch:
        patch.setattr(command, "upgrade", lambda config, _: command.downgrade(config, "0018"))
        migrate(schema.url, schema.name)
    sent, changed = await postgres.query(
        "SELECT count(*), count(value) FROM {t} UNION ALL SELECT count(*), count(value) FROM {s}",
        t="production",
        s="state_change",
    )
    assert sent == (1503 + 18, 1503 + 18)
    assert changed == (1503 + 18 + 4, 1503 + 18 + 2)
    migrate(schema.url, schema.name)
    for table in ("production", "state_change"):
        ((most,),) = await postgres.query(
            "SELECT max((SELECT sum(length(v::text)) FROM unnest(values) AS v))::bigint FROM {t}",
            t=table,
        )
        assert most < ROW_BYTES + 500_000
    assert await found() == before
    await owner.write(owner.fill(owner.commit(), 3, first=2000))


async def test_what_a_worker_writes_as_its_schema_is_migrated_is_not_lost(
    postgres: PostgresSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be in the middle of a commit: its number is looked for afterwards."""
    owner, schema = await Owner.take(postgres.store), postgres.schema
    await owner.write(owner.fill(owner.commit(), 3))
    with monkeypatch.context() as patch:
        patch.setattr(command, "upgrade", lambda config, _: command.downgrade(config, "0017"))
        migrate(schema.url, schema.name)
    bucket = owner.commit().bucket
    with (
        psycopg.connect(schema.url) as worker,
        psycopg.connect(schema.url, autocommit=True) as look,
        ThreadPoolExecutor(1) as pool,
    ):
        table = sql.Identifier(schema.name, f"seen_record_{bucket}")
        worker.execute(
            sql.SQL("INSERT INTO {} VALUES (1, %s, %s)").format(table),
            (owner.computation, uuid.UUID(bytes=record_id(1, 77))),
        )
        worker.execute(
            sql.SQL(
                "INSERT INTO {} SELECT log, 88, stream, receiver, slot, key, value, version, ts, "
                "hold, stamp FROM {} LIMIT 1"
            ).format(*[sql.Identifier(schema.name, f"production_{bucket}")] * 2)
        )
        migrating = pool.submit(migrate, schema.url, schema.name)
        while not look.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone():
            assert not migrating.done()
        worker.commit()
        migrating.result(60)
    found = await postgres.store.look_up_numbers(bucket, owner.computation, {1: range(100)})
    assert found == {1: {0, 1, 2, 77}}
    sent = [p.seq async for p in postgres.store.read_productions(owner.log(), 0)]
    assert sent[-1] == 88


def test_a_migration_that_fails_leaves_nothing(
    empty: Schema, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no views today")

    with monkeypatch.context() as patch:
        patch.setattr("millwheel.store.console.views.install_views", fail)
        with pytest.raises(RuntimeError, match="no views today"):
            migrate(empty.url, empty.name)
    assert schema_version(empty.url, empty.name) is None
    migrate(empty.url, empty.name)


async def test_pipelines_of_one_database_keep_out_of_each_others_way(
    new_schema: Callable[[int], Schema],
) -> None:
    sites = [await PostgresSite.open(new_schema(VERSIONS[-1])) for _ in range(2)]
    owners = [await Owner.take(site.store) for site in sites]
    await owners[0].write(owners[0].fill(owners[0].commit(), 3))
    assert len(await sites[0].states()) == 3
    assert await sites[1].states() == []
    assert await sites[1].store.other_workers(str(uuid.uuid4()))
    for site in sites:
        await site.aclose()
