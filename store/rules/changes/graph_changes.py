"""The differences of two graphs, node by node (`millwheel.graph.node.Node.describe`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from millwheel.core.extractors import Keys, comparable
from millwheel.store.port.change import CodeChange, Kind
from millwheel.store.rules.changes import kinds
from millwheel.store.rules.changes.obstacles import Obstacles
from millwheel.store.rules.code import Code, Generation

GUARANTEES = ("productions", "delivery", "named", "bundles", "broadcast_cells")
"""Parts of a description on which the form of a node's stored records depends."""

_MANNERS = ("spread()", "broadcast()")

FILES = "json_lines"

DELIVERY = "BundleDelivery"
"""Class of the step of a sink outside the store."""


def graph_changes(
    pipeline: str,
    history: Sequence[Generation],
    code: Code,
    removed: Collection[str],
    obstacles: Obstacles,
) -> Iterator[CodeChange]:
    newest = history[-1].code
    stored, nodes = newest.nodes, code.nodes
    for name, node in nodes.items():
        where = f"{_word_of(node)} {name!r}"
        if name in removed:
            kind = kinds.STEP_BACK if is_made(node) else kinds.NODE_BACK
            yield CodeChange(kind, where, given={"pipeline": pipeline})
        elif name not in stored:
            yield CodeChange(kinds.NODE_ADDED, where)
        else:
            changes = _NodeChanges(where, name, history, stored[name], node, obstacles)
            yield from changes.found(pipeline)
    for name, node in stored.items():
        if name not in nodes:
            given = {"pipeline": pipeline, "name": name}
            kind = kinds.STEP_MISSING if is_made(node) else kinds.NODE_MISSING
            yield CodeChange(kind, f"{_word_of(node)} {name!r}", given=given)


def renamed_changes(code: Code, renames: Mapping[str, str]) -> Iterator[CodeChange]:
    """`renames` has the former names by the new ones."""
    for name, former in renames.items():
        word = _word_of(code.nodes[name])
        yield CodeChange(kinds.NODE_RENAMED, f"{word} {name!r}", former, name)


def is_made(node: Mapping[str, Any]) -> bool:
    """Whether the engine makes and names a step: that of a sink, of ids, of a broadcast."""
    return node.get("kind") == "relay" or node.get("class") == DELIVERY


def _word_of(node: Mapping[str, Any]) -> str:
    return "step" if is_made(node) else str(node.get("kind", "node"))


class _NodeChanges:
    def __init__(
        self,
        where: str,
        name: str,
        history: Sequence[Generation],
        before: Mapping[str, Any],
        after: Mapping[str, Any],
        obstacles: Obstacles,
    ) -> None:
        self._where = where
        self._name = name
        self._history = history
        self._before = before
        self._after = after
        self._obstacles = obstacles

    def found(self, pipeline: str) -> Iterator[CodeChange]:
        if self._before.get("kind") != self._after.get("kind"):
            yield self._change(kinds.NODE_KIND, "kind")
            return
        yield from self._parts(kinds.CLASS, "class")
        yield from self._inputs()
        yield from self._writes(pipeline)
        for part in GUARANTEES:
            yield from self._parts(kinds.GUARANTEE, part)
        other_paths = _have_other_paths(self._before.get("source"), self._after.get("source"))
        yield from self._parts(kinds.PATHS if other_paths else kinds.SOURCE, "source")
        yield from self._parts(kinds.LATENESS, "lateness_seconds")
        yield from self._rules(kinds.STATE_RULE, "state_rules")
        yield from self._rules(kinds.RULE, "rules")
        yield from self._functions()
        yield from self._sinks()

    def _change(self, kind: Kind, part: str) -> CodeChange:
        before, after = self._before.get(part), self._after.get(part)
        return CodeChange(kind, f"{self._where}, {part}", before, after)

    def _parts(self, kind: Kind, part: str) -> Iterator[CodeChange]:
        if self._before.get(part) != self._after.get(part):
            yield self._change(kind, part)

    def _inputs(self) -> Iterator[CodeChange]:
        before, after = dict(self._before.get("inputs", ())), dict(self._after.get("inputs", ()))
        for stream in before.keys() - after.keys():
            held = self._name in {*self._obstacles.bundled, *self._obstacles.parked}
            kind = kinds.INPUT_MISSING_HELD if held else kinds.INPUT_MISSING
            yield CodeChange(kind, self._where, before=stream, given={"name": self._name})
        for stream in after.keys() - before.keys():
            yield CodeChange(kinds.INPUT_ADDED, self._where, after=stream)
        for stream in before.keys() & after.keys():
            one, other = before[stream], after[stream]
            if one != other:
                is_named = one not in _MANNERS and other not in _MANNERS
                kind = kinds.EXTRACTOR if is_named else kinds.INPUT_MANNER
                yield CodeChange(kind, f"{self._where}, input {stream!r}", one, other)

    def _writes(self, pipeline: str) -> Iterator[CodeChange]:
        before, after = set(self._before.get("writes", ())), set(self._after.get("writes", ()))
        for stream in sorted(before - after):
            kind = kinds.WRITES_MISSING
            if self._before.get("productions") == "weak" or self._before.get("kind") == "injector":
                kind = kinds.WRITES_MISSING_WEAK
            elif (self._name, stream) in self._obstacles.sent:
                kind = kinds.WRITES_MISSING_SENT
            yield CodeChange(kind, self._where, before=stream, given={"pipeline": pipeline})
        for stream in sorted(after - before):
            yield CodeChange(kinds.WRITES_ADDED, self._where, after=stream)

    def _rules(self, kind: Kind, part: str) -> Iterator[CodeChange]:
        before, after = self._before.get(part, {}), self._after.get(part, {})
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                where = f"{self._where}, {name}"
                yield CodeChange(kind, where, before.get(name), after.get(name))

    def _functions(self) -> Iterator[CodeChange]:
        before, after = functions_of(self._before), functions_of(self._after)
        for name in sorted(before.keys() & after.keys()):
            old, new = before[name], after[name]
            if old.may_differ(new):
                is_known = old.version != new.version or self._name not in self._obstacles.begun
                kind = kinds.FOLD if is_known else kinds.FOLD_UNCONFIRMED
                given = {"version": old.version + 1}
                yield CodeChange(kind, f"{self._where}, {name}", given=given)

    def _sinks(self) -> Iterator[CodeChange]:
        before, after = _sinks_of(self._before), _sinks_of(self._after)
        for sink in sorted(before.keys() - after.keys()):
            yield CodeChange(kinds.SINK_MISSING, self._where, before=sink[1])
        for sink in sorted(after.keys() - before.keys()):
            had_files = sink[0] == FILES and any(
                key[0] == FILES
                for generation in self._history
                for key in _sinks_of(generation.code.nodes.get(self._name, {}))
            )
            kind = kinds.FILES_AGAIN if had_files else kinds.SINK_ADDED
            yield CodeChange(kind, self._where, after=sink[1])
        for sink in sorted(before.keys() & after.keys()):
            one, other = before[sink], after[sink]
            for part in ("key", "producer_key"):
                if one.get(part) != other.get(part):
                    where = f"table {sink[1]!r}, {part}"
                    yield CodeChange(kinds.TABLE_KEY, where, one.get(part), other.get(part))


def functions_of(node: Mapping[str, Any]) -> dict[str, Keys]:
    """The functions that stored state of a node was made by."""
    return msgspec.convert(node.get("state_functions", {}), dict[str, Keys])


def with_known_functions(newest: Code, code: Code) -> dict[str, Any]:
    """The graph of `code`, with the newest stored functions in place of those that cannot be
    compared with them."""
    nodes = dict(code.nodes)
    for name, node in code.nodes.items():
        before, after = functions_of(newest.nodes.get(name, {})), functions_of(node)
        if not after or name not in newest.nodes:
            continue
        kept = {
            part: new if old.version != new.version or comparable(*_prints(old, new)) else old
            for part, new in after.items()
            if (old := before.get(part)) is not None
        }
        nodes[name] = {p: of for p, of in node.items() if p != "state_functions"}
        if kept:
            nodes[name]["state_functions"] = msgspec.to_builtins(kept)
    return {**code.graph, "nodes": nodes}


def _prints(old: Keys, new: Keys) -> tuple[str | None, str | None]:
    return old.fingerprint, new.fingerprint


def _have_other_paths(before: Any, after: Any) -> bool:
    """Whether two descriptions are of as many files, read in the same manner, at other paths. Files
    that are discovered are known by their paths."""
    if not (isinstance(before, Mapping) and isinstance(after, Mapping)):
        return False
    kinds_of_files = before.keys() & after.keys() & {"json_lines", "csv"}
    if not kinds_of_files or "discovers" in before or "discovers" in after:
        return False
    (kind,) = kinds_of_files
    one, other = before[kind], after[kind]
    numbers = [len(of) if isinstance(of, list) else 1 for of in (one, other)]
    return numbers[0] == numbers[1] and {**before, kind: None} == {**after, kind: None}


def _sinks_of(node: Mapping[str, Any]) -> dict[tuple[str, ...], Mapping[str, Any]]:
    """The sinks that a node's own commits write, by their identity: the name of a table, the whole
    description of another sink; with the stream."""
    found: dict[tuple[str, ...], Mapping[str, Any]] = {}
    for stream, uses in node.get("sinks", {}).items():
        for sink in uses:
            if "table" in sink:
                found["table", sink["table"], stream] = sink
            else:
                kind = next(iter(sink), "")
                found[kind, msgspec.json.encode(sink).decode(), stream] = sink
    return found
