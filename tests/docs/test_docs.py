"""The code of the documents runs, their links lead somewhere, and each benchmark has its
command."""

import asyncio
import re
import shlex
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench import summary
from bench.__main__ import parsed
from millwheel.sources import Row
from tests.support.code_blocks import python_blocks, run_block

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
OWN_SOURCE = DOCS / "howto" / "connect" / "own-source.md"
PAGES = (
    *ROOT.glob("*.md"),
    ROOT / "bench" / "README.md",
    *DOCS.glob("*.md"),
    DOCS / "deploy" / "README.md",
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_to_a_file(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text("utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" not in target and not target.startswith("#"):
            assert (page.parent / target.partition("#")[0]).exists(), target


def test_every_benchmark_has_a_command_that_exists() -> None:
    rows = summary.rows(summary.PAGE.read_text("utf-8"))
    assert len(rows) == 10
    for row in rows:
        python, _, module, *arguments = shlex.split(row.command)
        assert (python, module) == ("python", "bench")
        assert parsed(arguments).parts
        assert all(ratio > 0 for ratio in row.ends)


def test_the_chart_of_the_benchmarks_is_that_of_their_table() -> None:
    """`python -m bench.summary` draws it again."""
    drawn = summary.chart(summary.rows(summary.PAGE.read_text("utf-8")))
    assert summary.CHART.read_text("utf-8") == drawn


class Order(msgspec.Struct):
    """What the table of the page holds, as JSON."""

    item: str


async def test_the_source_of_the_page_keeps_the_protocol(tmp_path: Path) -> None:
    """Besides `check_source`, which the page runs: gaps, bad rows, rows that come later."""
    block = python_blocks(OWN_SOURCE.read_text("utf-8"))[0]
    assert len(block.splitlines()) < 75
    names: dict[str, Any] = {}
    await run_block(block, names, OWN_SOURCE)
    database = sqlite3.connect(tmp_path / "shop.db")
    database.execute("CREATE TABLE orders (id integer PRIMARY KEY, body text)")

    def order(number: int, body: str) -> None:
        database.execute("INSERT INTO orders VALUES (?, ?)", (number, body))
        database.commit()

    source = names["Orders"](str(tmp_path / "shop.db"), poll=0.001)
    (partition,) = source.partitions()
    assert not source.bounded
    reader = await partition.open(Order, None)
    assert await reader.read(5) == []
    order(3, '{"item": "tea"}')
    order(9, '{"item": 9}')
    assert reader.lag().rows == 2
    rows: list[Row] = []
    async with asyncio.timeout(20):
        while len(rows) < 2:
            if not (more := await reader.read(1)):
                await reader.wait()
            rows += more
    assert (rows[0].offset, rows[0].value) == (3, Order("tea"))
    assert (rows[1].offset, str(rows[1].error)) == (
        9,
        "order 9: Expected `str`, got `int` - at `$.item`",
    )
    assert (reader.ended, reader.progress(), reader.lag().rows) == (False, None, 0)
    position = reader.position(4)  # in a gap
    reader.close()
    reader = await partition.open(Order, position)
    assert [row.offset for row in await reader.read(5)] == [9]
    reader.close()
    database.close()


def test_every_decision_is_listed_under_its_title() -> None:
    titles = {
        path.name: path.read_text("utf-8").splitlines()[0].removeprefix("# ")
        for path in (DOCS / "decisions").glob("[0-9]*.md")
    }
    index = (DOCS / "decisions" / "README.md").read_text("utf-8")
    listed = re.findall(r"^(\d+)\. \[(.+)\]\((.+)\)$", index, re.MULTILINE)
    assert {name: f"{number}. {title}" for number, title, name in listed} == titles
    assert [int(number) for number, _, _ in listed] == list(range(1, len(titles) + 1))


def test_links_between_documents_lead_somewhere() -> None:
    lost = [
        f"{path.relative_to(DOCS)}: {link}"
        for path in DOCS.rglob("*.md")
        for link in re.findall(r"\]\(([^)#:]+)[^):]*\)", path.read_text("utf-8"))
        if not (path.parent / link).exists()
    ]
    assert lost == []
