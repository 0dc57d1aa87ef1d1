"""The pages of incidents have one form, and name commands, views, alerts and log events that there
are."""

from __future__ import annotations

import ast
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

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
INCIDENTS = DOCS / "howto" / "incidents"
INDEX = (INCIDENTS / "index.md").read_text("utf-8")
PAGES = {
    page.stem: page.read_text("utf-8") for page in INCIDENTS.glob("*.md") if page.stem != "index"
}
RUN = [page.read_text("utf-8") for page in (DOCS / "howto" / "run").glob("*.md")]
ALERTS = set(re.findall(r"alert: (\w+)", (DOCS / "deploy/alerts.yaml").read_text()))
HEADINGS = ["You notice", "Look", "Cause", "Repair", "After"]
ROOMS = ("millwheel", "store", "computations", "timers")
"""The folders of the code that workers run."""
SPARK = "millwheel/spark"
"""Its warnings are those of Spark's driver: the pages about Spark have them."""


def commands() -> Iterator[list[str]]:
    """The words of each command of the pages, without its comment."""
    for text in (*PAGES.values(), *RUN):
        joined = re.sub(r"\\\n\s*", "", text)
        for line in re.findall(r"^ *\$ millwheel (.+)$", joined, re.MULTILINE):
            yield shlex.split(line, comments=True)


def events() -> Iterator[str]:
    """Each event that a worker may log as a warning or an error, and that has a name."""
    modules = {path.resolve() for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    for module in sorted(modules):
        if module.is_relative_to(ROOT / SPARK):
            continue
        for call in ast.walk(ast.parse(module.read_text("utf-8"))):
            match call:
                case ast.Call(
                    func=ast.Attribute(attr="warning" | "error"),
                    args=[ast.Constant(value=str(event)), *_],
                ) if re.fullmatch(r"[a-z]+(_[a-z]+)*", event):
                    yield event


def test_statements_run(schema: Schema) -> None:
    migrate(schema.url, schema.name)
    statements = [
        words[1] for words in commands() if words[0] == "sql" and "totals" not in words[1]
    ]
    assert len(statements) >= 5
    with psycopg.connect(schema.url, autocommit=True) as connection:
        connection.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(schema.name)))
        for statement in statements:
            connection.execute(sql.SQL(statement))


def test_the_table_of_symptoms_names_each_alert_once() -> None:
    assert sorted(re.findall(r"`(Millwheel\w+)`", INDEX)) == sorted(ALERTS)


def test_the_table_of_symptoms_names_each_warning_of_a_worker() -> None:
    found = set(events())
    assert len(found) > 40
    assert {event for event in found if f"`{event}`" not in INDEX} == set()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_the_form_of_all(name: str) -> None:
    text = re.sub(r"```.*?```", "", PAGES[name], flags=re.DOTALL)
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == HEADINGS
    look = PAGES[name].partition("\n## Look\n")[2].partition("\n## ")[0]
    (block, *_) = re.findall(r"```console\n(.*?)```", look, re.DOTALL)
    shown = [line for line in block.splitlines() if not re.match(r"[$#] ", line)]
    assert shown, "the command is shown with its output"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_reached_from_the_table_and_its_alerts_lead_to_it(name: str) -> None:
    rows = [row for row in INDEX.splitlines() if f"]({name}.md)" in row]
    assert rows, "no row of the table leads to it"
    notice = PAGES[name].partition("\n## You notice\n")[2].partition("\n## ")[0]
    listed = set(re.findall(r"`(Millwheel\w+)`", "".join(rows)))
    assert listed <= set(re.findall(r"`(Millwheel\w+)`", notice))
