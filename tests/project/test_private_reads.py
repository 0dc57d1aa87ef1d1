"""No module of the product reads private attributes of another module's objects."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.support.product import ROOT, product_files

ALLOWED = {
    # public in spite of their names: methods of named tuples
    "_asdict", "_fields", "_make", "_replace",
    # of the standard library, documented or without another way
    "_current_frames", "_exit", "_getframe", "_get_running_loop", "_set_running_loop", "_run",
    # of PySpark, which has no other way to its session and its Java process
    "_accumulatorServer", "_active_spark_context", "_gateway",
}  # fmt: skip
"""Private names that may be read anywhere."""


def private_reads(source: str) -> Iterator[str]:
    """The reads of private attributes that nothing in the module defines."""
    tree = ast.parse(source)
    defined = set(_defined(tree))
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and node.attr.startswith("_")
            and not node.attr.startswith("__")
            and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
            and node.attr not in defined | ALLOWED
        ):
            yield f"line {node.lineno}: {ast.unparse(node)}"


def _defined(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=attr):
                yield attr
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign(targets=targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))


def test_a_module_reads_no_private_attribute_of_another() -> None:
    found = [
        f"{path.relative_to(ROOT)}, {read}"
        for path in product_files()
        for read in private_reads(path.read_text("utf-8"))
    ]
    assert found == [], "give the object a method for it"


def test_a_private_read_is_found() -> None:
    module = "class Lane:\n    def run(self, other):\n        self._own = other._own\n"
    assert list(private_reads(module)) == []
    assert list(private_reads(module + "        other._cell.key\n")) == ["line 4: other._cell"]
