"""Limits of the size of a class, and one class for each name.

A class with more methods, lines or attributes than these is two classes. A class name that is used
twice makes a reader, and a search, find the wrong one. Each exception has its reason here; an
exception that is not needed any more has to be removed.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from tests.support.code_blocks import python_blocks
from tests.support.product import ROOT, product_files

METHODS = 25
LINES = 350
ATTRIBUTES = 25

LARGE = {
    "Tables": "one attribute for each table of the store in memory",
    "Settings": "one attribute for each option; it has no behaviour",
    "ComputationStatus": (
        "one attribute for each figure of a computation in `status`; it has no behaviour"
    ),
    "Interval": (
        "one attribute for each part of its owner's soft state, which live and end together"
    ),
    "Engine": "builds and connects all rooms, and has an attribute for each",
}
"""Classes above a limit, each with the reason."""

TWICE: dict[str, str] = {}
"""Names of several classes, each with the reason."""


class ClassSize(NamedTuple):
    """A class, and the figures that have limits."""

    name: str
    path: str
    methods: int
    lines: int
    attributes: int

    @property
    def is_large(self) -> bool:
        return self.methods > METHODS or self.lines > LINES or self.attributes > ATTRIBUTES

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.name} has {self.methods} methods, {self.lines} lines and "
            f"{self.attributes} attributes"
        )


def classes() -> Iterator[ClassSize]:
    for path in product_files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                yield size_of(node, str(path.relative_to(ROOT)))


def size_of(class_: ast.ClassDef, path: str) -> ClassSize:
    assert class_.end_lineno is not None
    methods = {
        node.name
        for node in class_.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    lines = class_.end_lineno - class_.lineno + 1 - lines_of_examples(class_)
    return ClassSize(class_.name, path, len(methods), lines, len(attributes_of(class_)))


def lines_of_examples(class_: ast.ClassDef) -> int:
    """Lines of the blocks of code in the class's docstrings, which are not its own size."""
    texts = (
        node.value.value
        for node in ast.walk(class_)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
    return sum(len(block.splitlines()) + 2 for text in texts for block in python_blocks(text))


def attributes_of(class_: ast.ClassDef) -> set[str]:
    """The fields declared in the class, and the attributes that its methods set on ``self``."""
    fields = {
        node.target.id
        for node in class_.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and "ClassVar" not in ast.unparse(node.annotation)
    }
    return fields | {
        node.attr
        for node in ast.walk(class_)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def test_no_class_is_too_large_and_each_has_a_name_of_its_own() -> None:
    found = list(classes())
    large = [size for size in found if size.is_large]
    assert [str(size) for size in large if size.name not in LARGE] == [], (
        f"limits: {METHODS} methods, {LINES} lines, {ATTRIBUTES} attributes; split the class, or "
        "argue for it in LARGE"
    )
    needless = LARGE.keys() - {size.name for size in large}
    assert not needless, f"within the limits; remove from LARGE: {sorted(needless)}"

    paths = defaultdict(list)
    for size in found:
        paths[size.name].append(size.path)
    twice = {name: places for name, places in paths.items() if len(places) > 1}
    assert {name: places for name, places in twice.items() if name not in TWICE} == {}, (
        "rename one of them by what it is, or argue for it in TWICE"
    )
    needless = TWICE.keys() - twice.keys()
    assert not needless, f"used once; remove from TWICE: {sorted(needless)}"


def test_the_figures_of_a_class() -> None:
    (class_,) = ast.parse("""
class Lane:
    '''The docstring.

    ```python
    lane = Lane()
    ```
    '''

    limit: ClassVar[int] = 3
    name: str

    def __init__(self) -> None:
        self.queue = []
        self.queue, (self.a, other.b) = [], (1, 2)

    @property
    def size(self) -> int: ...

    @size.setter
    def size(self, size: int) -> None: ...
""").body
    assert isinstance(class_, ast.ClassDef)
    assert attributes_of(class_) == {"name", "queue", "a"}
    assert size_of(class_, "lane.py") == ClassSize("Lane", "lane.py", 2, 17, 3)


MANY_PARAMETERS = 28
"""Functions with more than six parameters; the number may only fall."""


FUNCTIONS_OF_SQL = ROOT / "millwheel" / "sql" / "functions"
"""They have the parameters that Postgres gives them."""


def test_few_functions_have_many_parameters() -> None:
    many = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path in product_files()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and not path.is_relative_to(FUNCTIONS_OF_SQL)
        and len([a for a in _arguments(node) if a.arg not in ("self", "cls")]) > 6
    ]
    assert len(many) <= MANY_PARAMETERS, many


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
