"""Parts of a pipeline that are legal and probably mistakes; commands that run it log them."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from millwheel.core.extractors import syntax_of
from millwheel.graph.node import Node
from millwheel.sinks import SinkUse, Table
from millwheel.streams import Stream

Sinks = Iterable[tuple[Stream[Any], SinkUse]]
"""Streams, each with a sink that it is written to."""


@dataclass(frozen=True)
class Doubt:
    """An event of the log."""

    event: str
    subject: dict[str, Any]
    """Its parts, and their place."""
    what_it_means: str
    what_to_do: str


def doubts(nodes: Iterable[Node], sinks: Sinks) -> Iterator[Doubt]:
    """All doubts about a pipeline."""
    yield from _attributes(nodes)
    yield from _shared_tables(sinks)


def _attributes(nodes: Iterable[Node]) -> Iterator[Doubt]:
    """Computations that add to an attribute of their own, as to a state."""
    for node in nodes:
        kind = type(node.computation)
        for method in _methods(kind):
            for line, text in _additions(method):
                yield Doubt(
                    "attribute_of_process",
                    {
                        "computation": node.name,
                        "at": f"{method.__code__.co_filename}:{line} in {method.__name__}: {text}",
                    },
                    "the value is in this process alone: another worker, and this one after a "
                    "restart, does not have it",
                    "keep it in ctx.state, or count with ctx.count",
                )


def _methods(kind: type) -> Iterator[FunctionType]:
    """The methods of a user's class, but those that Python calls and those that are overridden."""
    methods: dict[str, object] = {}
    for each in kind.__mro__:
        for name, method in vars(each).items():
            methods.setdefault(name, method)
    for name, method in methods.items():
        if not isinstance(method, FunctionType) or name.startswith("__"):
            continue
        if method.__module__.partition(".")[0] != "millwheel":
            yield method


def _additions(method: FunctionType) -> Iterator[tuple[int, str]]:
    """Augmented assignments to attributes of the first argument: their lines and texts."""
    node = syntax_of(method)
    if node is None or not node.args.args:
        return
    first = node.args.args[0].arg
    for part in ast.walk(node):
        if isinstance(part, ast.AugAssign) and _is_attribute_of(first, part.target):
            yield part.lineno, ast.unparse(part)


def _is_attribute_of(name: str, target: ast.expr) -> bool:
    if not isinstance(target, (ast.Attribute, ast.Subscript)):
        return False
    while isinstance(target, (ast.Attribute, ast.Subscript)):
        target = target.value
    return isinstance(target, ast.Name) and target.id == name


def _shared_tables(sinks: Sinks) -> Iterator[Doubt]:
    """Tables with a key that several streams write."""
    streams: defaultdict[str, set[str]] = defaultdict(set)
    for stream, use in sinks:
        if isinstance(use.sink, Table) and use.sink.key:
            streams[use.sink.name].add(stream.name)
    for table, names in streams.items():
        if len(names) > 1:
            yield Doubt(
                "table_of_several_streams",
                {"table": table, "streams": sorted(names)},
                "rows of these streams with one key replace each other, in no order",
                "if they may have the same keys: a table for each stream",
            )
