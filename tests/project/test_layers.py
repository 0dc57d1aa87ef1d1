"""The house's rules on who may import whom; the layers themselves stand in pyproject.toml."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[2]
LINKED = ("store", "timers", "computations", "migrations")

PUBLIC = {
    "millwheel",
    "millwheel.aggregates",
    "millwheel.computations",
    "millwheel.errors",
    "millwheel.windows",
}
PUBLIC_TO = {
    # What messages say, which values are equal, and what is a function: rules that have one place.
    "computations": {
        *PUBLIC,
        "millwheel.core.distribution",
        "millwheel.context",
        "millwheel.core.equality",
        "millwheel.core.functions",
        "millwheel.core.redaction",
    },
    # millwheel.sources: the port that a source of one's own implements, as Nexmark's generator does
    "examples": {
        *PUBLIC,
        "millwheel.client",
        "millwheel.core.distribution",
        "millwheel.kafka",
        "millwheel.sources",
        "millwheel.spark",
        "millwheel.testing",
        "examples",
    },
}

IMPORT_EVERYTHING = """
import importlib, pkgutil, sys
import millwheel

for module in pkgutil.walk_packages(millwheel.__path__, "millwheel."):
    # Alembic alone runs env.py; __main__ is the command line.
    if module.name not in ("millwheel.migrations.env", "millwheel.__main__"):
        importlib.import_module(module.name)
print(*sorted(sys.modules))
"""


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    command = "from importlinter.cli import lint_imports_command as run; run()"
    return subprocess.run(
        [sys.executable, "-c", command, "--no-cache", "--no-logo"],
        cwd=root,
        capture_output=True,
        text=True,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The sources in a place where a test may break the rules."""
    for folder in ("millwheel", *LINKED):
        without = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True, ignore=without)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_every_layer_imports_only_those_below_it() -> None:
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


WRONG = [
    ("timers/__init__.py", "import millwheel.store.postgres.schema", "millwheel.timers -> "),
    ("store/__init__.py", "import millwheel.cli", "millwheel.store -> millwheel.cli"),
    (
        "store/postgres/store.py",
        "import millwheel.store.console.roles",
        "millwheel.store.postgres.store -> millwheel.store.console.roles",
    ),
    (
        "store/memory/store.py",
        "import millwheel.store.postgres.store",
        "millwheel.store.memory.store -> millwheel.store.postgres.store",
    ),
    ("millwheel/errors.py", "import psycopg", "millwheel.errors -> psycopg"),
]
"""A module, a line that breaks a rule there, and a part of the complaint."""


def test_the_contracts_catch_what_they_are_for(copy: Path) -> None:
    """They must see through the links to the folders at the top, and know every module."""
    for module, line, _ in WRONG:
        with (copy / module).open("a") as file:
            file.write(f"\n{line}\n")
    result = lint_imports(copy)
    assert result.returncode != 0, result.stdout
    for _, _, complaint in WRONG:
        assert complaint in result.stdout.replace("\n", " "), result.stdout + result.stderr


def test_a_module_without_a_layer_is_noticed(copy: Path) -> None:
    (copy / "millwheel" / "nowhere.py").touch()
    result = lint_imports(copy)
    assert result.returncode != 0, result.stdout
    assert "nowhere" in result.stdout, result.stdout + result.stderr


def test_migrations_know_only_the_schema() -> None:
    """Its tables, and the views, which are made anew after every migration."""
    graph = grimp.build_graph("millwheel", cache_dir=None)
    inside = {"millwheel.migrations", *graph.find_descendants("millwheel.migrations")}
    known = set().union(*map(graph.find_modules_directly_imported_by, inside))
    assert known - inside <= {"millwheel.store.postgres.schema", "millwheel.store.console.views"}


@pytest.mark.parametrize("folder", sorted(PUBLIC_TO))
def test_only_the_public_api_is_used(folder: str) -> None:
    """What comes ready-made and what people copy must not need more than a user has."""
    strangers = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        for line, name in imported(node)
        if name.split(".")[0] in ("millwheel", "examples")
        and name not in PUBLIC_TO[folder]
        and not name.startswith((f"{folder}.", f"millwheel.{folder}."))
    ]
    assert strangers == []


def imported(node: ast.AST) -> list[tuple[int, str]]:
    if isinstance(node, ast.Import):
        return [(node.lineno, alias.name) for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        folder = ROOT / node.module.replace(".", "/")
        inside = {path.stem for path in folder.iterdir()} if folder.is_dir() else set()
        # `from millwheel import store` names a module too.
        modules = [f"{node.module}.{name.name}" for name in node.names if name.name in inside]
        return [(node.lineno, name) for name in [node.module, *modules]]
    return []


def test_no_folder_is_imported_by_its_top_level_name(tmp_path: Path) -> None:
    """A user may have a package called ``store``; with the checkout on the path, ours would win."""
    script = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{IMPORT_EVERYTHING}"
    result = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    modules = set(result.stdout.split())
    assert "millwheel.store" in modules
    assert modules.isdisjoint(LINKED)
