"""The Python blocks of pages and docstrings, and how to run them.

A block is fenced by ```` ```python ````, in Markdown and in docstrings alike. It may `await`.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

BLOCK = re.compile(r"^( *)```python\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


class Example(NamedTuple):
    """A block of a docstring."""

    path: Path
    owner: str
    """The documented object, such as ``Harness.inject``; of a module an empty string."""
    line: int
    """The line of the file with the block's first line."""
    code: str

    @property
    def size(self) -> int:
        """Number of lines that are neither blank nor part of an import."""
        tree = ast.parse(self.code)
        imports = {
            number
            for node in tree.body
            if isinstance(node, ast.Import | ast.ImportFrom)
            for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }
        lines = enumerate(self.code.splitlines(), start=1)
        return sum(line.strip() != "" and number not in imports for number, line in lines)


def python_blocks(text: str) -> list[str]:
    """The Python blocks of a page, in order."""
    return [textwrap.dedent(code) for _, code in BLOCK.findall(text)]


async def run_block(code: str, names: dict[str, Any], path: Path, line: int = 1) -> None:
    """Run a block with these names, and add those that it defines.

    Args:
        line: the line of the file at which the block begins, for tracebacks.
    """
    tree = ast.increment_lineno(ast.parse(code), line - 1)
    program = compile(
        tree, str(path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
    )
    waiting = eval(program, names)
    if inspect.iscoroutine(waiting):
        await waiting


def examples(path: Path) -> Iterator[Example]:
    """The blocks of all docstrings of a file."""
    source = path.read_text("utf-8")
    lines = source.splitlines()
    for owner, docstring in _docstrings(ast.parse(source), ""):
        text = "\n".join(lines[docstring.lineno - 1 : docstring.end_lineno]) + "\n"
        for found in BLOCK.finditer(text):
            line = docstring.lineno + text[: found.start(2)].count("\n")
            yield Example(path, owner, line, textwrap.dedent(found[2]))


def _docstrings(node: ast.AST, owner: str) -> Iterator[tuple[str, ast.Expr]]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                yield from _docstrings(child, f"{owner}.{name}".lstrip("."))
            case ast.AsyncFunctionDef(name=name):
                yield from _docstrings(child, f"{owner}.{name}".lstrip("."))
            case ast.Expr(value=ast.Constant(value=str())):
                yield owner, child
