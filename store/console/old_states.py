"""Stored values of former versions of their types: read page by page, and replaced by the same
values in the present form.

A replacement changes nothing that a computation can see, since each reader of the former form
migrates it. So it needs no lock and no owner: it applies if the row is still the one that was read,
and its interval can no longer be owned by code that does not know the new version.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import psycopg
from psycopg.conninfo import make_conninfo

from millwheel.errors import UsageError
from millwheel.store.console.live_workers import live_workers
from millwheel.store.console.snapshot import CONNECT_SECONDS, translated
from millwheel.store.postgres import arrays, session
from millwheel.store.postgres.statements import READ_COMMITTED, Statements
from millwheel.store.postgres.translation import unreached
from millwheel.store.rules.code import Code, Generation, with_present_names

ROWS_A_PAGE = 2_000
"""A page of so many rows takes some milliseconds."""


class StatePlace(NamedTuple):
    """A row of the table of states, which is in this order."""

    slot: int
    computation: int
    key: str
    entry: str


BEFORE_ALL = StatePlace(-1, 0, "", "")


class StoredValue(NamedTuple):
    place: StatePlace
    version: int
    read: str
    """The transaction that has written it."""
    value: bytes
    is_free: bool
    """Former code cannot own its interval any more."""


class StatePage(NamedTuple):
    found: list[StoredValue]
    """Values of other versions than the code's."""
    last: StatePlace | None
    """The page's last row; None: the table ends before."""


class CurrentVersion(NamedTuple):
    computation: int
    version: int
    since: int
    """The generation that began with this version: former code cannot own an interval of it."""


@contextlib.contextmanager
def old_states(url: str, pipeline: str) -> Iterator[OldStates]:
    try:
        connection = session.connect(
            make_conninfo(
                url,
                application_name="millwheel migration of states",
                connect_timeout=CONNECT_SECONDS,
            ),
            {"search_path": "", "timezone": "UTC", **READ_COMMITTED},
        )
    except psycopg.Error as error:
        raise unreached(error) from error
    with translated(), connection:
        yield OldStates(connection, pipeline)


class OldStates:
    """`connection` is in autocommit."""

    def __init__(self, connection: psycopg.Connection[Any], pipeline: str) -> None:
        arrays.register(connection.adapters)
        self._connection = connection
        self._statements = Statements(pipeline)
        self._pipeline = pipeline
        self._newest = 0

    def current(self, versions: Mapping[str, int]) -> dict[str, CurrentVersion]:
        """The versions of computations, if they are the deployed ones.

        Raises:
            UsageError: they are not.
        """
        rows = self._rows("deployed")
        history = [Generation(n, msgspec.json.decode(code, type=Code)) for n, code in rows]
        if not history:
            raise UsageError(f"pipeline {self._pipeline!r} was never run: it has no state")
        if running := self._rows("runs_on_spark"):
            raise UsageError(
                f"pipeline {self._pipeline!r} runs on Spark, and its state is in the checkpoint "
                f"{running[0][0]}, where each value is migrated when it is read"
            )
        ids = {name: id_ for id_, name in self._rows("deployed_computations")}
        generations = with_present_names(history, {})
        found: dict[str, CurrentVersion] = {}
        for name, version in versions.items():
            state = generations[-1].code.states.get(name)
            if name not in ids or state is None or state.version != version:
                deployed = "nothing" if state is None else f"version {state.version}"
                raise UsageError(
                    f"the state of {name!r} is deployed as {deployed}, and this code has version "
                    f"{version}. Deploy this code first: start a worker with it"
                )
            since = _since(generations, name, version)
            found[name] = CurrentVersion(ids[name], version, since)
        self._newest = history[-1].number
        return found

    def is_current(self) -> bool:
        """Whether no other code was deployed since `current`."""
        ((newest,),) = self._rows("newest_generation")
        return bool(newest == self._newest)

    def page(self, current: Sequence[CurrentVersion], after: StatePlace) -> StatePage:
        rows = self._rows(
            "old_states", {**_columns(current), **after._asdict(), "rows": ROWS_A_PAGE}
        )
        if not rows:
            return StatePage([], None)
        found = [
            StoredValue(StatePlace(*row[:4]), row[4], row[5], row[6].encode(), row[7])
            for row in rows
            if row[6] is not None
        ]
        return StatePage(found, StatePlace(*rows[-1][:4]))

    def replace(self, values: Sequence[tuple[StoredValue, bytes, int]]) -> int:
        """Replace values by others, of these versions; returns the number of those that were still
        as they were read."""
        if not values:
            return 0
        places = [of.place for of, *_ in values]
        params = {
            "slots": arrays.integers([place.slot for place in places]),
            "computations": arrays.integers([place.computation for place in places]),
            "keys": arrays.texts([place.key.encode() for place in places]),
            "entries": arrays.texts([place.entry.encode() for place in places]),
            "read": arrays.texts([of.read.encode() for of, *_ in values]),
            "values": arrays.texts([value for _, value, _ in values]),
            "versions": arrays.integers([version for *_, version in values]),
        }
        return self._connection.execute(self._statements.get("replace_states"), params).rowcount

    def to_fold(self, current: Sequence[CurrentVersion]) -> int:
        """Number of values of other versions that owners have not folded into the table yet."""
        ((count,),) = self._rows("old_states_to_fold", _columns(current))
        return int(count)

    def has_workers(self) -> bool:
        """Whether a worker runs, which folds the commits of its intervals."""
        return bool(live_workers(self._connection, self._statements))

    def _rows(self, name: str, params: Mapping[str, Any] | None = None) -> list[Any]:
        return self._connection.execute(self._statements.get(name), params).fetchall()


def _columns(current: Sequence[CurrentVersion]) -> dict[str, list[int]]:
    return {
        "computations": [of.computation for of in current],
        "versions": [of.version for of in current],
        "since": [of.since for of in current],
    }


def _since(generations: Sequence[Generation], name: str, version: int) -> int:
    since = generations[-1].number
    for generation in reversed(generations):
        state = generation.code.states.get(name)
        if state is None or state.version != version:
            break
        since = generation.number
    return since
