"""The pages for operators name commands, views and alerts that exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from millwheel.store.console.migrate import migrate
from tests.support.store_sites import Schema

pytestmark = pytest.mark.newest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("incidents.md", "operating.md")
ALERTS = set(re.findall(r"alert: (\w+)", (DOCS / "deploy/alerts.yaml").read_text()))


def commands() -> Iterator[list[str]]:
    """The words of each command of the pages, without its comment."""
    for page in PAGES:
        for line in re.findall(r"^ *\$ millwheel (.+)$", (DOCS / page).read_text(), re.MULTILINE):
            yield shlex.split(line, comments=True)


def test_statements_run(schema: Schema) -> None:
    migrate(schema.url, schema.name)
    statements = [words[1] for words in commands() if words[0] == "sql"]
    assert len(statements) >= 5
    with psycopg.connect(schema.url, autocommit=True) as connection:
        connection.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(schema.name)))
        for statement in statements:
            connection.execute(sql.SQL(statement))


def test_each_alert_has_its_section() -> None:
    named = set(re.findall(r"`(Millwheel\w+)`", (DOCS / "incidents.md").read_text()))
    assert named == ALERTS
