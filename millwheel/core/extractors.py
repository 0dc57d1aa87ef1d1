"""Fingerprints of key extractors, which a deploy compares to find changed code.

A hash of syntax: of the function, of the functions and constants of its own module that it uses,
and of the values that it closes over; formatting, comments, annotations, names of local variables
and the version of Python make no difference. Without the source, the names and constants of the
compiled code are hashed; the prefix shows which, and the two cannot be compared.

It does not see every change: a property of the value's class, a library, a table that is read at
run time. So correctness never depends on it (decision 42).
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import linecache
import operator
import re
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any, TypeAlias

import msgspec

SOURCE = "source"
COMPILED = "compiled"

MOST_DEPTH = 8
"""Depth to which functions used by functions are followed."""

_FIXED = (str, int, float, bool, bytes, type(None))
_CONSTANTS = (*_FIXED, tuple, frozenset, re.Pattern)
"""Lists and dicts do not count: they may be filled at run time."""
_LEFT_OUT = frozenset(
    {"annotation", "ctx", "decorator_list", "kind", "returns", "type_comment", "type_params"}
)


class Keys(msgspec.Struct, frozen=True, array_like=True):
    version: int
    fingerprint: str | None

    def may_differ(self, other: Keys) -> bool:
        if self.version != other.version:
            return True
        known = comparable(self.fingerprint, other.fingerprint)
        return known and self.fingerprint != other.fingerprint


AllKeys: TypeAlias = dict[str, dict[str, Keys]]


class _NoSource(Exception):
    """The code of a callable cannot be inspected."""


def fingerprint(extractor: Callable[..., Any]) -> str | None:
    """A hash of an extractor's code, prefixed with its origin; None if the code is not
    accessible."""
    reading = _Reading()
    try:
        parts = reading.of(extractor)
    except _NoSource:
        return None
    text = msgspec.json.encode(parts)
    digest = hashlib.blake2b(text, digest_size=12).hexdigest()
    return f"{SOURCE if reading.from_source else COMPILED}:{digest}"


def comparable(one: str | None, other: str | None) -> bool:
    return one is not None and other is not None and one.split(":")[0] == other.split(":")[0]


class _Reading:
    def __init__(self) -> None:
        self.from_source = True
        self._known: dict[int, int] = {}
        """Functions by identity, numbered in order."""

    def of(self, function: Any, depth: int = 0) -> Any:
        """`_NoSource` if the code cannot be inspected."""
        if id(function) in self._known:
            return ["again", self._known[id(function)]]
        self._known[id(function)] = len(self._known)
        if depth > MOST_DEPTH:
            raise _NoSource
        if isinstance(function, FunctionType):
            return self._of_function(function, depth)
        if isinstance(function, MethodType):
            return ["method", self.of(function.__func__, depth + 1)]
        if isinstance(function, functools.partial):
            named = [[name, self._of_value(v, depth)] for name, v in function.keywords.items()]
            given = [self._of_value(value, depth) for value in function.args]
            return ["partial", self.of(function.func, depth + 1), given, sorted(named)]
        if isinstance(function, (operator.attrgetter, operator.itemgetter, operator.methodcaller)):
            return ["operator", repr(function)]
        if isinstance(function, (type, BuiltinFunctionType)):
            return ["named", function.__module__, function.__qualname__]
        call = inspect.getattr_static(type(function), "__call__", None)
        if isinstance(call, FunctionType):
            kept = [
                [name, self._of_value(value, depth)]
                for name, value in sorted(getattr(function, "__dict__", {}).items())
            ]
            return ["object", type(function).__qualname__, self.of(call, depth + 1), kept]
        raise _NoSource

    def _of_value(self, value: Any, depth: int) -> Any:
        if type(value) in _FIXED:
            return [type(value).__name__, repr(value)]
        if type(value) in (tuple, list):
            return [type(value).__name__, [self._of_value(part, depth) for part in value]]
        if type(value) is frozenset:
            return ["frozenset", sorted(repr(v) if type(v) in _FIXED else "?" for v in value)]
        if type(value) is re.Pattern:
            return ["pattern", repr(value.pattern), value.flags]
        if callable(value):
            return self.of(value, depth + 1)
        return ["a", type(value).__qualname__]

    def _of_function(self, function: FunctionType, depth: int) -> Any:
        code = function.__code__
        module = function.__module__ or ""
        if module.partition(".")[0] == "millwheel":  # its code varies by release
            return ["engine", function.__qualname__, self._closed(function, depth)]
        node = syntax_of(function)
        if node is None:
            self.from_source = False
            names = set(_names(code))
            parts: Any = [list(_names(code)), sorted(map(repr, _constants(code))), code.co_argcount]
        else:
            names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
            parts = _Syntax().of_function(node)
        defaults = [self._of_value(v, depth) for v in function.__defaults__ or ()]
        used = []
        for name in sorted(names):
            value = function.__globals__.get(name)
            is_own = isinstance(value, FunctionType) and value.__module__ == function.__module__
            if is_own or (name in function.__globals__ and type(value) in _CONSTANTS):
                used.append([name, self._of_value(value, depth)])
        return ["function", parts, defaults, self._closed(function, depth), used]

    def _closed(self, function: FunctionType, depth: int) -> Any:
        closed = []
        names = function.__code__.co_freevars
        for name, cell in zip(names, function.__closure__ or (), strict=True):
            try:
                closed.append([name, self._of_value(cell.cell_contents, depth)])
            except ValueError:  # the cell is not filled yet
                closed.append([name, "empty"])
        return closed


def _names(code: CodeType) -> Iterator[str]:
    """Globals and attributes, those of inner functions included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _constants(code: CodeType) -> Iterator[Any]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _constants(constant)
        else:
            yield constant


_Node = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def syntax_of(function: FunctionType) -> _Node | None:
    """The syntax of a function; None: its source is missing or ambiguous."""
    try:
        file = inspect.getsourcefile(function)
    except TypeError:
        return None
    if file is None:
        return None
    lines = linecache.getlines(file, function.__globals__)
    return _find_node("".join(lines), function.__code__)


@functools.lru_cache(maxsize=1000)
def _find_node(source: str, code: CodeType) -> _Node | None:
    tree = _tree_of(source)
    if tree is None:
        return None
    found: list[_Node] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda):
            if code.co_name == "<lambda>" and node.lineno == code.co_firstlineno:
                found.append(node)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if node.name == code.co_name and first == code.co_firstlineno:
                found.append(node)
    if len(found) > 1:
        found = _innermost([n for n in found if isinstance(n, ast.Lambda) and _holds(n, code)])
    return found[0] if len(found) == 1 else None


@functools.lru_cache(maxsize=16)
def _tree_of(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):
        return None


Place = tuple[int, int]
"""Line and column."""


def _span(node: ast.Lambda) -> tuple[Place, Place]:
    body = node.body
    return (body.lineno, body.col_offset), (body.end_lineno or 0, body.end_col_offset or 0)


def _holds(node: ast.Lambda, code: CodeType) -> bool:
    """Whether compiled code comes entirely from a lambda's body."""
    begin, end = _span(node)
    spans = [
        ((line, column), (end_line, end_column))
        for line, end_line, column, end_column in code.co_positions()
        if line is not None
        and column is not None
        and end_line is not None
        and end_column is not None
        and (line, column) != (end_line, end_column)
    ]
    return bool(spans) and all(begin <= first and last <= end for first, last in spans)


def _innermost(found: list[ast.Lambda]) -> list[_Node]:
    spans = [_span(node) for node in found]
    return [
        node
        for node, (begin, end) in zip(found, spans, strict=True)
        if not any(
            begin <= other_begin and other_end <= end
            for other_begin, other_end in spans
            if (other_begin, other_end) != (begin, end)
        )
    ]


class _Syntax:
    """Local names are replaced by their order."""

    def __init__(self) -> None:
        self._local: dict[str, str] = {}

    def of_function(self, node: _Node) -> Any:
        for argument in ast.walk(node.args):
            if isinstance(argument, ast.arg):
                self._name(argument.arg)
        body: Any = node.body
        if isinstance(node, ast.Lambda):
            body = [ast.Return(node.body)]
        elif ast.get_docstring(node) is not None:
            body = node.body[1:]
        for part in body:
            for name in ast.walk(part):
                if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                    self._name(name.id)
        return [self._of(node.args), [self._of(part) for part in body]]

    def _name(self, name: str) -> str:
        return self._local.setdefault(name, f"local {len(self._local)}")

    def _of(self, part: Any) -> Any:
        if isinstance(part, ast.AST):
            fields = [
                [field, self._of_field(part, field, value)]
                for field, value in ast.iter_fields(part)
                if field not in _LEFT_OUT and value is not None and value != []
            ]
            return [type(part).__name__, sorted(fields, key=operator.itemgetter(0))]
        if isinstance(part, list):
            return [self._of(each) for each in part]
        return [type(part).__name__, repr(part)]

    def _of_field(self, part: ast.AST, field: str, value: Any) -> Any:
        if (isinstance(part, ast.Name) and field == "id") or (
            isinstance(part, ast.arg) and field == "arg"
        ):
            return self._local.get(value, value)
        if isinstance(part, ast.JoinedStr):  # only Python 3.12 has empty parts in f-strings
            value = [each for each in value if not _is_empty(each)]
        return self._of(value)


def _is_empty(part: Any) -> bool:
    return isinstance(part, ast.Constant) and part.value == ""
