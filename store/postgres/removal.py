"""The removal of nodes from a pipeline that may be running, as a generator of statements: an
operator's command and a deploy send them on connections of different kinds."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeAlias

import msgspec

from millwheel.errors import UsageError
from millwheel.store.postgres.statements import Statements
from millwheel.store.rules.code import Code
from millwheel.store.rules.generations import refuse_with_members, without

OWNER_LOCK_MILLISECONDS = 500
"""A commit of a live owner releases its interval sooner."""

ATTEMPTS = 20
"""Attempts to lock the intervals, each in a savepoint."""

Query: TypeAlias = tuple[str, dict[str, Any]]
"""A statement and its parameters; answered with its rows."""


class Removal:
    def __init__(
        self,
        statements: Statements,
        pipeline: str,
        names: Sequence[str],
        *,
        are_replaced: bool = False,
    ) -> None:
        self._statements = statements
        self._pipeline = pipeline
        self._names = list(names)
        self._are_replaced = are_replaced

    def run(self) -> Generator[Query, list[Any], list[int]]:
        """Begin a generation without the nodes, and delete their intervals; returns their ids.

        Raises:
            UsageError: a remaining node needs them, or an open numbered bundle has records of them.
        """
        names, pipeline = self._names, self._pipeline
        history = yield from self._ask("deployed")
        if not history:
            raise UsageError(f"pipeline {pipeline!r} was never run: there is nothing to remove")
        number, code = history[-1]
        stored = msgspec.json.decode(code, type=Code)
        left = without(pipeline, stored, names, are_replaced=self._are_replaced)
        yield from self._ask("set_lock_timeout", lock=f"{OWNER_LOCK_MILLISECONDS}ms")
        encoded = msgspec.json.encode(left).decode()
        yield from self._ask("begin_generation", number=number + 1, code=encoded)
        removed = yield from self._ask("remove_computations", names=names)
        ids = [id_ for (id_,) in removed]
        yield from self._hold_intervals(ids)
        which = {"computations": ids, "names": names}
        found = yield from self._ask("bundles_in_the_way", "latest_commits", **which)
        refuse_with_members(pipeline, found)
        yield from self._ask("remove_intervals", "latest_commits", **which)
        yield from self._ask("refuse_requests", **which)
        yield from self._ask("release_letters", **which)
        return ids

    def _hold_intervals(self, ids: list[int]) -> Generator[Query, list[Any], None]:
        """Lock all intervals of the nodes. Repeats until it finds no new ones: a split, merge or
        claim that the lock waited for has made intervals or logs that only a later statement
        sees."""
        held = None
        while True:
            found = yield from self._ask("hold_intervals", computations=ids)
            if found == held:
                return
            held = found

    def _ask(self, name: str, *views: str, **params: Any) -> Generator[Query, list[Any], list[Any]]:
        text = self._statements.get(name, **{view: view for view in views})
        return (yield text, params)
