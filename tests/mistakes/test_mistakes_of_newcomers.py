"""Each mistake that a newcomer made has a clear message: no silence, no wrong blame."""

from __future__ import annotations

import ast
import asyncio
import shlex
import socket
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import sql

from millwheel.errors import MillwheelError
from millwheel.testing import Harness
from tests.mistakes import of_code, of_commands, of_graphs, of_settings, of_stores, of_tests
from tests.mistakes.entries import Failure, InTest, Mistake, Refusal, ShownBy
from tests.mistakes.programs import changed
from tests.support.shells import Shell
from tests.support.store_sites import Schema

NOWHERE = "postgresql://nobody@127.0.0.1:1/nowhere"
COUNTED = 102
ALL: tuple[Mistake, ...] = (
    *of_code.ENTRIES,
    *of_graphs.ENTRIES,
    *of_settings.ENTRIES,
    *of_commands.ENTRIES,
    *of_stores.ENTRIES,
    *of_tests.ENTRIES,
)
TESTS = Path(__file__).parents[1]


def of_kind(kind: type[Mistake]) -> pytest.MarkDecorator:
    """A test of each entry of exactly this kind."""
    found = [entry for entry in ALL if type(entry) is kind]
    return pytest.mark.parametrize("entry", found, ids=lambda e: f"{e.number} {e.what}")


def test_each_mistake_of_the_list_is_here() -> None:
    numbers = {entry.number for entry in ALL}
    assert numbers == set(range(1, max(numbers) + 1))
    assert max(numbers) > COUNTED
    assert all(entry.says for entry in ALL)


def missing(parts: tuple[str, ...], message: str) -> list[str]:
    return [part for part in parts if part not in message]


def write(shell: Shell, entry: Refusal) -> None:
    (shell.directory / "shop.py").write_text(entry.program)
    (shell.directory / "orders.jsonl").write_text(entry.rows)
    (shell.directory / "loop.jsonl").symlink_to("loop.jsonl")


def check(entry: Refusal, ended: tuple[int, str, str], **names: Any) -> None:
    """The exit code, the parts of the message, and that it blames no bug of the product."""
    code, stdout, stderr = ended
    message = stdout + stderr
    says = [part.format(**names) for part in entry.says]
    if entry.at:
        says.append(entry.place())
    assert (code, missing(tuple(says), message)) == (entry.code, []), message
    assert "bug in millwheel" not in message
    assert "Traceback" not in message
    assert "millwheel/graph/" not in message, "a line of the product"


def test_the_program_without_a_mistake_runs(
    tmp_path: Path, new_schema: Callable[[int], Schema]
) -> None:
    shell = Shell(tmp_path, new_schema(18).url, "wheel")
    write(shell, Refusal(0, "", ()))
    code, _, stderr = shell.start("run", "shop:pipeline").end()
    assert code == 0, stderr
    for word in ("attribute_of_process", "table_of_several_streams", "not_awaited", "error"):
        assert word not in stderr


@of_kind(Refusal)
def test_it_is_refused_before_anything_starts(entry: Refusal, tmp_path: Path) -> None:
    shell = Shell(tmp_path, NOWHERE, "wheel")
    write(shell, entry)
    check(entry, shell.start(*shlex.split(entry.command)).end())
    made = {path.name for path in tmp_path.iterdir()} - {"__pycache__"}
    assert made == {"shop.py", "orders.jsonl", "loop.jsonl"}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A port that is in use."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


class Addresses:
    """Addresses of a store with parts replaced."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)

    @property
    def other_database(self) -> str:
        return urlunsplit(self._parts._replace(path="/nosuch"))

    @property
    def other_login(self) -> str:
        return self._with_login("stranger")

    @property
    def login_without_rights(self) -> str:
        return self._with_login("clerk")

    def _with_login(self, login: str) -> str:
        host = self._parts.netloc.rpartition("@")[2]
        return urlunsplit(self._parts._replace(netloc=f"{login}@{host}"))


@of_kind(Failure)
def test_it_is_answered_with_the_mistake_the_place_and_the_remedy(
    entry: Failure, tmp_path: Path, new_schema: Callable[[int], Schema], port: int
) -> None:
    schema = new_schema(18)
    shell = Shell(tmp_path, schema.url, "wheel")
    write(shell, Refusal(0, "", ()) if entry.first else entry)
    for command in entry.first:
        assert shell.start(*shlex.split(command)).end()[0] == 0
        (tmp_path / "shop.py").write_text(entry.program)
    for statement in entry.sql:
        with psycopg.connect(schema.url, autocommit=True) as connection:
            connection.execute(sql.SQL(statement))
    names = {"store": Addresses(schema.url), "port": port}
    ended = shell.start(*shlex.split(entry.command.format(**names))).end()
    check(entry, ended, **names)


@of_kind(InTest)
def test_a_mistake_in_a_test_is_answered(entry: InTest, monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("shop")
    monkeypatch.setitem(sys.modules, "shop", module)
    text = f"{changed(*entry.changes)}\n\nasync def mistake(harness):\n    {entry.statement}\n"
    exec(compile(text, "shop.py", "exec"), module.__dict__)

    async def run() -> None:
        async with Harness(module.pipeline) as harness:
            await module.mistake(harness)

    with pytest.raises(MillwheelError) as raised:
        asyncio.run(run())
    assert missing(entry.says, str(raised.value)) == [], str(raised.value)
    assert raised.value.exit_code == entry.code


@lru_cache
def functions_of(file: Path) -> frozenset[str]:
    tree = ast.parse(file.read_text("utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in tree.body if isinstance(node, kinds))


@of_kind(ShownBy)
def test_another_test_shows_it(entry: ShownBy) -> None:
    name, _, function = entry.test.partition("::")
    assert function in functions_of(TESTS / name)
    assert missing(entry.says, (TESTS / name).read_text("utf-8")) == []
