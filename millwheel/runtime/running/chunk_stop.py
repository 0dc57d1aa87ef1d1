"""The stop of a chunk's run before its end, and the effects of the keys before it."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

from millwheel.core.effects import Effects, EffectsMark
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.keys.key_state import CapturedStates, KeyState, encode_all, record_all
from millwheel.runtime.process.tasks import is_ours, raise_ours
from millwheel.runtime.routes.routes import address_all

NO_STATES = CapturedStates([], [], [])

ChunkGroup = tuple[KeyState, list[int]]
"""The state of a key, and the places of its records in a chunk, in order."""

RAN: Any = object()
"""Stands for the end of a call."""


class Waiting:
    """A call of user code that waits for a future: awaiting it continues the call."""

    __slots__ = ("_awaited", "_call")

    def __init__(self, call: Generator[Any, Any, None], awaited: Any) -> None:
        self._call = call
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, None]:
        call, awaited = self._call, self._awaited
        while True:
            try:
                yield awaited
            except GeneratorExit:
                call.close()
                raise
            except BaseException as error:
                try:
                    awaited = call.throw(error)
                except StopIteration:
                    return
            else:
                awaited = next(call, RAN)
                if awaited is RAN:
                    return


class Stop(NamedTuple):
    """Why and where the run of a chunk has stopped."""

    done: int
    """Number of keys before the one that stopped it."""
    productions: int
    """Number of productions of these keys."""
    mark: EffectsMark | None
    """The end of their other effects."""
    begun: int
    """Number of the stopping key's records that have begun."""
    waiting: Waiting | None
    """The call that waits; None: it has raised."""


def seal(interval: Interval, groups: list[ChunkGroup], effects: Effects) -> CapturedStates | None:
    """Give the productions of some keys of a chunk their addresses, and capture the changes of
    state.

    Returns:
        None: a production or a state cannot be stored. The effects and changes are dropped: to find
            the record at fault, the keys must run one by one.
    """
    if not groups:
        return NO_STATES
    states = [state for state, _ in groups]
    try:
        address_all(effects)
        encoded = encode_all(states)
    except BaseException as error:
        if is_ours(error):
            raise_ours(error)
        drop(groups, effects)
        return None
    return record_all(states, encoded, interval.commits.n + 1)


def drop(groups: list[ChunkGroup], effects: Effects) -> None:
    """Drop effects, and changes of state that are not captured."""
    for state, _ in groups:
        state.revert()
    effects.clear()
