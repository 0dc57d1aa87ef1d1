"""The contract, docs/invariants.md: citations of it resolve, and everything it names exists."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "invariants.md"

FOLDERS = (
    ".ci",
    "bench",
    "computations",
    "docs",
    "examples",
    "migrations",
    "millwheel",
    "store",
    "tests",
    "timers",
)
GENERATED = {"__pycache__", ".venvs", "out"}
SUFFIXES = {".md", ".py", ".sql"}

CITED = re.compile(r"(?<![\w-])I(\d+)\b")
"""An invariant. With a hyphen in front it is an option of Valgrind's."""

DECISIONS = re.compile(r"\bdecisions?\s+(\d+(?:(?:,|,? and| or| to)\s+\d+)*)\b", re.IGNORECASE)
LINE_BREAK = re.compile(r"\n\s*(?:--|#|>)?\s*")
ABSENT_DOCUMENT = re.compile(r"[(](?:the )?design\b|\bdesign(?:[.]md| I\d| §| \d)", re.IGNORECASE)

SECTION = re.compile(r"^## (I\d+) (\S.*)$", re.MULTILINE)
ITEM = re.compile(
    r"^- \*(Enforced|Tests|Simulation|Planted|Campaign):\*\s+(.+(?:\n  .+)*)$", re.MULTILINE
)
CODE = re.compile(r"`([^`]+)`")
GLOSSARY = (
    "low watermark",
    "hold",
    "interval",
    "lane",
    "bucket",
    "fold",
    "generation",
    "sequencer",
    "production",
    "straggler",
)


def texts() -> Iterator[tuple[Path, str]]:
    """Every Python, SQL and Markdown file of the tree. The symbolic links in `millwheel` lead to
    folders that are walked by themselves."""
    yield from ((path, path.read_text()) for path in sorted(ROOT.glob("*.md")))
    for folder in FOLDERS:
        for where, inside, names in os.walk(ROOT / folder):
            inside[:] = sorted(set(inside) - GENERATED)
            for name in sorted(names):
                path = Path(where, name)
                if path.suffix in SUFFIXES:
                    yield path, path.read_text()


def sections() -> dict[str, str]:
    """The text of each invariant."""
    found = SECTION.split(DOCUMENT.read_text().split("\n## Glossary")[0])
    return dict(zip(found[1::3], found[3::3], strict=True))


def items(section: str) -> dict[str, list[str]]:
    """What an invariant's list names, by the label of the line."""
    return {label: CODE.findall(text) for label, text in ITEM.findall(section)}


def decisions_in(text: str) -> list[int]:
    """The numbers of the decisions that a text cites. Its lines may be those of a comment."""
    joined = LINE_BREAK.sub(" ", text)
    return [int(n) for cited in DECISIONS.findall(joined) for n in re.findall(r"\d+", cited)]


@cache
def names_of(path: Path) -> frozenset[str]:
    """Functions, classes, methods and constants that a Python file defines: ``Class.method``."""
    found: set[str] = set()

    def look(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            match node:
                case ast.ClassDef():
                    found.add(prefix + node.name)
                    look(node.body, f"{prefix}{node.name}.")
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    found.add(prefix + node.name)
                case ast.Assign(targets=targets):
                    found.update(prefix + t.id for t in targets if isinstance(t, ast.Name))
                case ast.AnnAssign(target=ast.Name(id=name)):
                    found.add(prefix + name)

    look(ast.parse(path.read_text()).body, "")
    return frozenset(found)


def is_there(name: str) -> bool:
    """Whether ``path`` or ``path::name`` exists."""
    place, _, inside = name.partition("::")
    path = ROOT / place
    return path.is_file() and (not inside or inside in names_of(path))


def functions_of(path: str) -> dict[str, str]:
    """The docstring of each function of a module."""
    tree = ast.parse((ROOT / path).read_text())
    return {
        node.name: ast.get_docstring(node) or ""
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    }


def planted_in(path: str) -> dict[str, str]:
    """Bugs that a module can plant: the docstring of each, by its name. One that it takes from
    another module has none here."""
    documented = functions_of(path)
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "PLANTED":
            assert isinstance(node.value, ast.Dict)
            return {
                ast.literal_eval(key): documented.get(ast.unparse(value), "")
                for key, value in zip(node.value.keys, node.value.values, strict=True)
                if key is not None
            }
    raise AssertionError(f"{path} plants nothing")


def cited_in(docstring: str) -> set[str]:
    return {f"I{n}" for n in CITED.findall(docstring)}


CHECKS = {
    name: text for name, text in functions_of("tests/sim/checks.py").items() if cited_in(text)
}
PLANTED = planted_in("tests/sim/planted.py")
CAMPAIGN = planted_in("tests/campaign/planted.py")


def test_the_invariants_are_numbered_named_and_complete() -> None:
    numbers = [number for number, _ in SECTION.findall(DOCUMENT.read_text())]
    assert numbers == [f"I{n}" for n in range(1, 20)]
    for number, section in sections().items():
        found = items(section)
        assert "Enforced" in found, number
        assert found.keys() & {"Tests", "Simulation"}, f"{number} is checked by nothing"
        labelled = len(re.findall(r"^- \*\w+:\*", section, re.MULTILINE))
        assert labelled == len(found), f"{number} has an item of another form"


def test_the_glossary_has_its_terms() -> None:
    glossary = DOCUMENT.read_text().split("\n## Glossary")[1]
    found = re.findall(r"^- \*\*(.+?)\*\*", glossary, re.MULTILINE)
    assert set(GLOSSARY) <= set(found)
    assert found == sorted(found, key=str.lower)


def test_every_cited_invariant_is_one_of_the_document() -> None:
    known = sections().keys()
    lost = [
        f"{path.relative_to(ROOT)}: I{number}"
        for path, text in texts()
        for number in CITED.findall(text)
        if f"I{number}" not in known
    ]
    assert lost == []


def test_every_cited_decision_has_its_file() -> None:
    known = {int(path.name[:4]) for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md")}
    lost = [
        f"{path.relative_to(ROOT)}: {number}"
        for path, text in texts()
        for number in decisions_in(text)
        if number not in known
    ]
    assert lost == []


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("see decision 4.", [4]),
        ("(Decision 12, paper 6.2)", [12]),
        ("decisions 4, 12 and 30 say", [4, 12, 30]),
        ("decisions 4 and 12; 3 of them", [4, 12]),
        ("-- as in (decision\n-- 7).", [7]),
        ("    # by decisions 4 and\n    # 12", [4, 12]),
        ("two decisions, 3 lines", []),
    ],
)
def test_citations_of_decisions_are_found_over_lines_and_in_lists(
    text: str, numbers: list[int]
) -> None:
    assert decisions_in(text) == numbers


def test_no_text_cites_a_document_that_is_not_in_the_tree() -> None:
    lost = [
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path, text in texts()
        if (found := ABSENT_DOCUMENT.search(text))
    ]
    assert lost == []


def test_what_the_document_names_exists() -> None:
    lost: list[str] = []
    for number, section in sections().items():
        for label, names in items(section).items():
            known = {"Simulation": CHECKS, "Planted": PLANTED, "Campaign": CAMPAIGN}.get(label)
            lost += [
                f"{number} {label}: {name}"
                for name in names
                if not (name in known if known is not None else is_there(name))
            ]
            if label == "Tests":
                lost += [f"{number} is no test: {n}" for n in names if not n.startswith("tests/")]
    assert lost == []


def test_other_words_in_code_type_are_in_the_code() -> None:
    """Settings, tables and options that the sentences name."""
    code = "".join(
        text
        for path, text in texts()
        if path.suffix != ".md" and path.relative_to(ROOT).parts[0] not in ("tests", "bench")
    )
    sentences = ITEM.sub("", DOCUMENT.read_text())
    lost = [
        name
        for name in CODE.findall(sentences)
        if not (is_there(name) if "/" in name else re.sub(r"^(ctx|Settings)[.]", "", name) in code)
    ]
    assert lost == []


def test_links_of_the_document_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)", DOCUMENT.read_text())
    assert links
    assert [link for link in links if not (DOCUMENT.parent / link).exists()] == []


@pytest.mark.parametrize(
    ("label", "documented"),
    [("Simulation", CHECKS), ("Planted", PLANTED), ("Campaign", CAMPAIGN)],
)
def test_each_check_and_planted_bug_stands_under_the_invariants_it_cites(
    label: str, documented: dict[str, str]
) -> None:
    named = {number: items(section).get(label, []) for number, section in sections().items()}
    lost = [
        f"{name} cites {number}"
        for name, docstring in documented.items()
        for number in cited_in(docstring)
        if name not in named[number]
    ]
    assert lost == []
    everywhere = {name for names in named.values() for name in names}
    assert documented.keys() == everywhere
