"""Explains the steps of a query: keys, windows, the state that is kept, its bound, and the moment
at which rows come out.

A step is explained by its description, which a deploy stores as well (`Node.describe`), so that a
computation of any kind has at least its rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from millwheel.computations import LastingJoin, TemporalJoin, WindowJoin
from millwheel.graph.node import Node
from millwheel.sql import syntax as s
from millwheel.sql.statement_parsing import parse
from millwheel.sql.steps import QueryJoin


def explained(nodes: Iterable[Node], text: str, streams: Mapping[str, str]) -> list[str]:
    """The lines for some steps.

    Args:
        nodes: the steps of a query.
        text: the query.
        streams: the names of the streams that its statements write, by those in the text.
    """
    groups = _groups(text, streams)
    lines: list[str] = []
    for node in nodes:
        lines += [node.name, *(f"  {line}" for line in _step(node, groups))]
    return lines


def _groups(text: str, streams: Mapping[str, str]) -> dict[str, str]:
    """The expressions of ``GROUP BY``, by the stream of the results."""
    found: dict[str, str] = {}
    for statement in parse(text):
        if isinstance(statement, s.Insert) and statement.target is not None:
            selects = _selects(statement.query)
            columns = [_written(each) for select in selects for each in select.group]
            found[streams[statement.target]] = ", ".join(dict.fromkeys(columns))
    return found


def _selects(query: s.Query) -> Sequence[s.Select]:
    return query.parts if isinstance(query, s.Union) else [query]


def _written(value: s.Expression) -> str:
    if isinstance(value, s.Name):
        return value.column
    return f"the expression in line {value.place.line}, column {value.place.column}"


def _step(node: Node, groups: Mapping[str, str]) -> Iterator[str]:
    described = node.describe()
    if node.kind == "injector":
        yield f"reads a source: {_listed(described['source'])}"
        seconds = described["lateness_seconds"]
        yield f"its low watermark is {seconds:g} s behind its newest row"
        return
    rules = {**described.get("state_rules", {}), **described.get("rules", {})}
    for input_ in node.inputs:
        yield f"reads {input_.stream.name}{_keyed(node, groups, input_.manner)}"
    if node.layout is None or node.layout.stateless:
        yield "keeps no state; rows come out with the records that arrive together"
    elif isinstance(node.computation, QueryJoin):
        yield from _join(node.computation.join, rules)
    elif "windows" in rules:
        yield from _windows(rules)
    else:
        yield from _totals(rules)
    known = {
        "windows",
        "late",
        "allowed_lateness",
        "early",
        "accumulate",
        "before",
        "after",
        "time",
    }
    known |= {"query", "wait"}
    yield from (f"{name}: {value}" for name, value in rules.items() if name not in known)
    yield from _sinks(node)


def _keyed(node: Node, groups: Mapping[str, str], manner: str) -> str:
    if node.layout is None or node.layout.stateless:
        return "" if node.kind != "relay" else f", {manner}"
    columns = next((groups[w.name] for w in node.writes if groups.get(w.name)), "")
    return f", a key for each group: {columns}" if columns else ", by key"


def _windows(rules: Mapping[str, Any]) -> Iterator[str]:
    late, lateness = rules.get("late"), rules.get("allowed_lateness")
    yield f"keeps state for each group and open window: {rules['windows']}"
    if late == "amend" and lateness is None:
        yield "until: never, so its state grows with the number of groups and windows"
    else:
        more = f" and {lateness} more" if lateness else ""
        yield f"until the low watermark has passed the end of the window{more}, which bounds it"
    early = rules.get("early")
    when = f", and before as records arrive ({early})" if early else ""
    yield f"rows come out when the low watermark passes the end of a window{when}"
    if late == "amend":
        yield "late records: the row of their window comes out again, with them"
    else:
        yield f"late records: {'left out, and counted (late_dropped)' if late == 'drop' else late}"


def _join(join: object, rules: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(join, TemporalJoin):
        yield "holds records until the low watermark has passed them, and the newest row of a key"
        yield "until: never, so its state grows with the number of keys"
        return
    if isinstance(join, LastingJoin):
        yield "holds all records of both streams, for ever (RETAIN UNBOUNDED)"
    elif isinstance(join, WindowJoin):
        yield f"holds the records of both streams by window: {rules['windows']}"
        yield "until the low watermark has passed the end of the window, which bounds it"
    else:
        yield "holds the records of both streams until no partner can come, which bounds it:"
        yield f"a right one may be {rules['before']} earlier and {rules['after']} later"
    yield "a row comes out when the second record of a pair arrives"


def _totals(rules: Mapping[str, Any]) -> Iterator[str]:
    after = rules.get("after")
    yield "keeps state for each group"
    if after is None:
        yield "until: never (RETAIN UNBOUNDED), so its state grows with the number of groups"
    else:
        yield f"until {after} after the last record of the group, in event time, which bounds it"
    yield "rows come out whenever records of a group have arrived"


def _sinks(node: Node) -> Iterator[str]:
    for uses in node.sinks.values():
        for use in uses:
            sink = use.sink.describe()
            if "table" not in sink:
                yield f"writes {_listed(sink)}"
                continue
            key = sink.get("key")
            how = f"a row replaces the one with its {', '.join(key)}" if key else "rows are added"
            yield f"writes the table {sink['table']}, in the same transaction: {how}"


def _listed(description: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in description.items())
