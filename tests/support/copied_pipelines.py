"""Pipelines to copy: the one of visits with tables of users beside it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from millwheel.services.run import Run
from millwheel.store.console.inspection import inspect
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
CREATE FUNCTION plus(n integer) RETURNS integer LANGUAGE sql RETURN n + 1;
CREATE VIEW dear (shop, price) AS SELECT r.name, plus(s.price::integer)
    FROM "Shop ""1" s JOIN region r ON r.id = s.region;
INSERT INTO region (name) VALUES ('north'), ('south');
INSERT INTO "Shop ""1" (region, price) VALUES (1, 10), (2, 20);
"""


async def run(schema: Schema, directory: Path, name: str = "wheel", rows: int = 200) -> None:
    """Until all rows are processed; event time does not end."""
    stop = asyncio.Event()
    made = Run(pipeline(name, write(directory, rows)[0]), schema.url, keep_open=True)
    running = asyncio.create_task(made.run(stop))
    while count_of(schema, name) < rows:
        await asyncio.sleep(0.05)
        if running.done():
            break
    stop.set()
    await running


def count_of(schema: Schema, name: str) -> int:
    with inspect(schema.url) as inspection:
        steps = inspection.status(name).computations if name in inspection.pipelines() else []
    return sum(one.processed for one in steps if one.name == "windowed")


def rows_of(connection: psycopg.Connection[Any], schema: str, table: str) -> list[str]:
    text = sql.SQL("SELECT t::text FROM {} AS t ORDER BY 1").format(sql.Identifier(schema, table))
    return [row for (row,) in connection.execute(text)]
