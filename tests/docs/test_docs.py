"""The README's code runs, and its test passes; so does the source of `docs/sources.md`."""

import asyncio
import re
import sqlite3
import sys
import types
from pathlib import Path
from typing import Any

import msgspec

from millwheel.sources import Row

README = Path(__file__).parents[2] / "README.md"
SOURCES = README.parent / "docs" / "sources.md"


async def test_the_code_of_the_readme_runs_and_its_test_passes() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 3
    module = types.ModuleType("readme")
    sys.modules["readme"] = module
    try:
        for block in blocks:
            exec(compile(block, str(README), "exec"), module.__dict__)
        await module.test_a_spike_is_told_once()
        assert {"views", "clicks", "seen"} <= set(module.shop.graph().streams)
    finally:
        del sys.modules["readme"]


class Order(msgspec.Struct):
    """What the table of `docs/sources.md` holds, as JSON."""

    item: str


async def test_the_source_of_the_guide_keeps_the_protocol(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", SOURCES.read_text("utf-8"), re.DOTALL)
    assert len(block.splitlines()) < 75
    names: dict[str, Any] = {}
    exec(compile(block, str(SOURCES), "exec"), names)
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
    assert reader.lag() == (2, None)
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
    assert (reader.ended, reader.progress(), reader.lag()) == (False, None, (0, None))
    position = reader.position(4)  # in a gap
    reader.close()
    reader = await partition.open(Order, position)
    assert [row.offset for row in await reader.read(5)] == [9]
    reader.close()
    database.close()
