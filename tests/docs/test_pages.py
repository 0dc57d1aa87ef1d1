"""The blocks of the docs run, and pages are as long as a reader has patience for."""

from __future__ import annotations

import ast
import contextlib
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.code_blocks import run_block
from tests.support.pasted_pages import Block, Shell, blocks, paste, tutorial
from tests.support.servers import VERSIONS, database

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
KINDS = ("start", "howto", "reference", "why")
PAGES = [page for kind in KINDS for page in sorted((DOCS / kind).rglob("*.md"))]
LONGEST_WORDS = 1200
GENERATED = (DOCS / "reference", DOCS / "why" / "campaign.md")
"""Pages that are made from code may be longer."""

DATABASE = "DATABASE_URL"
"""The variable that names a Postgres, for pages with code that reads it."""


def name(page: Path) -> str:
    return page.relative_to(DOCS).as_posix()


def with_code(page: Path) -> bool:
    return any(block.language == "python" for block in blocks(page))


def write(block: Block, directory: Path) -> None:
    assert block.file is not None
    path = directory / block.file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.text, "utf-8")


@pytest.mark.pages
def test_the_tutorial_runs_as_it_stands(tmp_path: Path) -> None:
    """Each page continues in the directory and the shell of the one before."""
    directory = tmp_path / "empty"
    directory.mkdir()
    with Shell(directory) as shell:
        for page in tutorial():
            paste(page, shell)


@pytest.mark.pages
@pytest.mark.parametrize("page", ["howto/run/reprocess.md"])
def test_a_page_of_commands_runs_as_it_stands(page: str, tmp_path: Path) -> None:
    directory = tmp_path / "empty"
    directory.mkdir()
    with Shell(directory) as shell:
        paste(DOCS / page, shell)


@pytest.fixture
def database_of(
    postgres_url: Callable[[int], str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Path], None]]:
    """Gives a page an empty database, if its code asks for one."""
    with contextlib.ExitStack() as opened:

        def provide(page: Path) -> None:
            if DATABASE in page.read_text("utf-8"):
                url = opened.enter_context(database(postgres_url(VERSIONS[-1])))
                monkeypatch.setenv(DATABASE, url)

        yield provide


@pytest.mark.parametrize(
    "page", [page for page in PAGES if with_code(page) and "start" not in page.parts], ids=name
)
async def test_the_code_of_a_page_runs(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    database_of: Callable[[Path], None],
) -> None:
    database_of(page)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    module = types.ModuleType("the_page")
    before = set(sys.modules)
    monkeypatch.setitem(sys.modules, "the_page", module)
    try:
        for block in blocks(page):
            if block.language == "python" and block.file is None:
                await run_block(block.text, module.__dict__, page)
            elif block.language in ("python", "sql") and block.file is not None:
                write(block, tmp_path)
        for given, test in list(vars(module).items()):
            if given.startswith("test_") and inspect.isfunction(test):
                found = test()
                if inspect.isawaitable(found):
                    await found
    finally:
        for added in set(sys.modules) - before:
            if str(getattr(sys.modules[added], "__file__", "")).startswith(str(tmp_path)):
                del sys.modules[added]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_is_short_and_its_fragments_compile(page: Path) -> None:
    if not any(page.is_relative_to(made) for made in GENERATED):
        assert len(page.read_text("utf-8").split()) <= LONGEST_WORDS
    for block in blocks(page):
        if block.language == "py":
            ast.parse(block.text)
