"""Pipelines to copy: the one of visits with tables of users beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from millwheel.services.run import Run
from tests.support.store_sites import Schema
from tests.support.visit_files import pipeline, write

USERS_OWN = """
CREATE TABLE region (id serial PRIMARY KEY, name text NOT NULL UNIQUE);
CREATE TABLE "Shop ""1" (
    id bigint GENERATED ALWAYS AS IDENTITY (START 5) PRIMARY KEY,
    region integer REFERENCES region, price numeric CHECK (price > 0),
    twice numeric GENERATED ALWAYS AS (price * 2) STORED
) WITH (fillfactor = 70);
CREATE INDEX "by price" ON "Shop ""1" ((price + 1) DESC) WHERE price < 100;
CREATE UNLOGGED TABLE scratch (n integer);
COMMENT ON TABLE region IS 'it''s a region';
ALTER TABLE region ALTER COLUMN name SET STATISTICS 500;
CREATE FUNCTION plus(n integer) RETURNS integer LANGUAGE sql IMMUTABLE RETURN n + 1;
CREATE FUNCTION regions() RETURNS bigint LANGUAGE sql BEGIN ATOMIC SELECT count(*) FROM region; END;
CREATE FUNCTION first_region() RETURNS text LANGUAGE sql AS 'SELECT min(name) FROM region';
CREATE TABLE called (n integer DEFAULT plus(1) CHECK (plus(n) > 0));
CREATE INDEX ON called (plus(n));
CREATE VIEW dear (shop, price) AS SELECT r.name, plus(s.price::integer)
    FROM "Shop ""1" s JOIN region r ON r.id = s.region;
INSERT INTO region (name) VALUES ('north'), ('south');
INSERT INTO "Shop ""1" (region, price) VALUES (1, 10), (2, 20);
INSERT INTO called DEFAULT VALUES;
"""


async def run(schema: Schema, directory: Path, name: str = "wheel", rows: int = 200) -> None:
    """Until all rows are processed; event time does not end."""
    files, _ = write(directory, rows)
    summary = await Run(pipeline(name, files), schema.url, keep_open=True).run()
    assert summary.read == rows


def rows_of(connection: psycopg.Connection[Any], schema: str, table: str) -> list[str]:
    text = sql.SQL("SELECT t::text FROM {} AS t ORDER BY 1").format(sql.Identifier(schema, table))
    return [row for (row,) in connection.execute(text)]
