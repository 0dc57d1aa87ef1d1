"""The public API is named once: `millwheel.PUBLIC_MODULES`, and ``__all__`` of each module."""

from __future__ import annotations

import ast
import types
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import millwheel
from tests.support.code_blocks import python_blocks

ROOT = Path(__file__).resolve().parents[2]
PLACES = ["millwheel", *(f"millwheel.{name}" for name in millwheel.PUBLIC_MODULES)]

INTERNAL = {"cli", "core", "graph", "migrations", "runtime", "services", "store"}
"""Packages of the engine, of which no name is stable. Flat modules are all public."""

RE_EXPORTED_FROM_INTERNAL = {"Key", "Record", "Timer"}
"""Defined in `millwheel.core.model`, which every room uses; public as `millwheel.Record`."""

IMPORTED_BY_DOCS = {
    (
        "millwheel.store.snapshot",
        "snapshot",
    ): "howto/connect/sql-inside.md reads the views from Python",
}
"""Names without a public module that the documents import nevertheless, with the reason."""

PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "bench" / "README.md"]


def imports(source: str) -> Iterator[tuple[str, str]]:
    """Module and name of each import of millwheel; for a module as a whole the name is empty."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] == "millwheel":
                yield from ((module, alias.name) for alias in node.names)
            case ast.Import():
                names = (alias.name for alias in node.names)
                yield from ((name, "") for name in names if name.split(".")[0] == "millwheel")


def is_public(module: str, name: str) -> bool:
    """Whether a program may rely on an import."""
    if module not in PLACES:
        return False
    return name in ("", *import_module(module).__all__) or f"{module}.{name}" in PLACES


def defined(module: types.ModuleType) -> set[str]:
    """Names that the source of a module gives a value, by a class, a function or an assignment."""
    found = set()
    for node in ast.parse(Path(str(module.__file__)).read_text("utf-8")).body:
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                found.add(node.name)
            case ast.Assign():
                found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
    return found


def test_the_public_modules_are_those_at_the_top() -> None:
    top = Path(millwheel.__file__).parent
    flat = {path.stem for path in top.glob("*.py")} - {"__init__", "__main__"}
    packages = {path.parent.name for path in top.glob("*/__init__.py")}
    assert packages >= INTERNAL
    assert set(millwheel.PUBLIC_MODULES) == flat | (packages - INTERNAL)
    assert list(millwheel.PUBLIC_MODULES) == sorted(set(millwheel.PUBLIC_MODULES))


@pytest.mark.parametrize("place", PLACES)
def test_each_public_name_exists_where_it_is_listed(place: str) -> None:
    module = import_module(place)
    assert len(module.__all__) == len(set(module.__all__)) > 0
    missing = [name for name in module.__all__ if not hasattr(module, name)]
    assert missing == []
    if Path(str(module.__file__)).name != "__init__.py":
        assert set(module.__all__) - defined(module) == set(), "it is defined in another module"


def test_names_of_millwheel_are_public_in_their_own_modules() -> None:
    """`millwheel` re-exports what most programs need."""
    elsewhere = {name for place in PLACES[1:] for name in import_module(place).__all__}
    assert set(millwheel.__all__) - elsewhere == RE_EXPORTED_FROM_INTERNAL


def test_documents_import_only_public_names() -> None:
    found = {
        (module, name): page.relative_to(ROOT)
        for page in PAGES
        for block in python_blocks(page.read_text("utf-8"))
        for module, name in imports(block)
    }
    assert len(found) > 25
    private = {each: page for each, page in found.items() if not is_public(*each)}
    assert private.keys() == IMPORTED_BY_DOCS.keys(), private


def test_private_imports_are_recognised() -> None:
    source = """
import millwheel.core.codec, os
from millwheel.windows import Tumbling, shown
from millwheel import windows
"""
    assert [is_public(*each) for each in imports(source)] == [False, True, False, True]
