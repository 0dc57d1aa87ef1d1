"""*What is on disk?*: bytes by kind as the views have them, and what keeps them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import urlencode

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from tests.support.seen_pages import SeenPages
from tests.support.store_sites import COUNT, Owner, PostgresSite, deploy

pytestmark = pytest.mark.newest

PagesOf = Callable[..., SeenPages]

DISK = "/pipelines/wheel/disk"


async def test_kinds_and_reasons_are_those_of_the_views(
    postgres: PostgresSite, pages_of: PagesOf
) -> None:
    owner = await Owner.take(postgres.store)
    await owner.write(owner.fill(owner.commit(), 40))
    pages = pages_of(postgres.schema.url)
    found = pages.json(DISK)
    kinds = await postgres.query(
        "SELECT kind, sum(bytes)::bigint FROM {v} GROUP BY kind", v="disk_use"
    )
    assert {one["kind"]: one["bytes"] for one in found["kinds"]} == dict(kinds)
    sizes = [one["bytes"] for one in found["kinds"]]
    assert sizes == sorted(sizes, reverse=True)
    for one in found["kinds"]:
        assert sum(table["bytes"] for table in one["tables"]) == one["bytes"]
    kept = await postgres.query("SELECT kept_by, what FROM {v}", v="oldest_bucket")
    assert sorted((one["kept_by"], one["what"]) for one in found["kept"]) == sorted(kept)
    assert {"last commit", "fold"} <= {one["kept_by"] for one in found["kept"]}
    assert found["unfolded"] == 2
    text = pages.text(DISK)
    assert "2 commits are not folded" in text
    assert "Its owner folds them within seconds" in text
    assert "None was found." in text


async def test_a_reader_keeps_the_past_and_its_statement_can_be_hidden(
    postgres: PostgresSite, pages_of: PagesOf
) -> None:
    await Owner.take(postgres.store)
    with psycopg.connect(postgres.schema.url) as reader:
        tables = postgres.schema.compose("LOCK TABLE {c} IN ACCESS SHARE MODE", c="commit_record")
        reader.execute(tables)
        reader.execute("SELECT 'a secret'")
        pages = pages_of(postgres.schema.url)
        (kept,) = [one for one in pages.json(DISK)["kept"] if one["kept_by"] == "reader"]
        assert "a secret" in kept["detail"]
        assert "end it with pg_terminate_backend" in pages.text(DISK)
        hidden = pages_of(postgres.schema.url, redact=True)
        assert "a secret" not in hidden.get(DISK).text


async def test_old_snapshots_are_told_with_what_to_do(
    postgres: PostgresSite, pages_of: PagesOf
) -> None:
    await Owner.take(postgres.store)
    pages = pages_of(postgres.schema.url)
    assert "No snapshot is older than a minute." in pages.text(DISK)
    await postgres.query(
        "CREATE OR REPLACE VIEW {v} AS SELECT 'session'::text AS kind, 'process 7, user eve'::text "
        "COLLATE \"C\" AS what, 7 AS pid, now() - interval '5 min' AS since, 12 AS transactions",
        v="old_snapshots",
    )
    text = pages_of(postgres.schema.url).text(DISK)
    assert "process 7, user eve 5 min" in text
    assert "SELECT pg_terminate_backend(7)" in text


async def test_a_login_that_sees_its_own_sessions_only_is_told(
    postgres: PostgresSite, pages_of: PagesOf
) -> None:
    await Owner.take(postgres.store)
    role = sql.Identifier(f"reader_{uuid.uuid4().hex[:8]}")
    with psycopg.connect(postgres.schema.url, autocommit=True) as connection:
        for text in (
            "CREATE ROLE {role} LOGIN PASSWORD 'pass'",
            "GRANT USAGE ON SCHEMA {schema} TO {role}",
            "GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}",
        ):
            schema = sql.Identifier(postgres.schema.name)
            connection.execute(sql.SQL(text).format(role=role, schema=schema))
        try:
            name = role.as_string(connection).strip('"')
            where = {**conninfo_to_dict(postgres.schema.url), "user": name, "password": "pass"}
            database = where.pop("dbname")
            text = pages_of(f"postgresql:///{database}?{urlencode(where)}").text(DISK)
            assert "This login sees its own sessions only" in text
            assert "No snapshot is older" not in text
        finally:
            connection.execute(sql.SQL("DROP OWNED BY {}").format(role))
            connection.execute(sql.SQL("DROP ROLE {}").format(role))


async def test_state_that_no_code_reads_is_told(postgres: PostgresSite, pages_of: PagesOf) -> None:
    collections = {"marks": ["map", {"type": "string"}, {"type": "integer"}]}
    state = {"type": "object", "n": "int", "collections": collections}
    deployed = await deploy(postgres.store, count=replace(COUNT, state=state))
    owner = await Owner.take(postgres.store, deployed)
    commit = owner.commit()
    commit.states = [owner.state("a", 1, 'marks/"x"')]
    await owner.write(commit)
    await deploy(postgres.store, count=COUNT)
    pages = pages_of(postgres.schema.url)
    (found,) = pages.json(DISK)["orphaned"]
    assert (found["computation"], found["collection"], found["generation"]) == ("count", "marks", 1)
    assert "millwheel migrate wheel --allow-drop" in pages.text(DISK)
