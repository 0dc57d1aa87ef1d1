"""Weak code is run twice and compared, in tests: it will be, after a crash.

What a weak computation produces for a record must depend on the record alone: it is made again when
its sender starts over, and what differs then is lost or counts twice. So a test calls the code on a
copy of each record first, with effects that are thrown away, and then in earnest; both must produce
the same values to the same streams, with the same timestamps, in the same order. Code that keeps state and
says that this makes no difference (`Computation.order_insensitive`) is called once more, as if
nothing had come before.

What is not found out: what is the same throughout a process, such as the order of a set of texts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millwheel.codec import reason, shown
from millwheel.context import Context, Effects
from millwheel.errors import NotTheSameAgain, UserCodeError
from millwheel.model import Delivery, Record, from_micros
from millwheel.runtime.environment import UserCode
from millwheel.runtime.interval.key_state import KeyState
from millwheel.runtime.interval.routing import Step
from millwheel.runtime.interval.weak_ids import WeakIds
from millwheel.runtime.modes.ack_chain import Caused
from millwheel.runtime.process.tasks import is_ours, raise_ours

Said = tuple[str, int, bytes]
"""A production: its stream, its timestamp in microseconds, and its value as it is stored."""

MOST_SHOWN = 20
"""Productions of one run that an error shows."""


def twice(
    step: Step,
    code: UserCode,
    make_context: Callable[[Step, Effects], Context[Any, Any]],
    effects: Effects,
) -> UserCode:
    """User code that is called twice on each record, and has to do the same both times; for
    `Options.wrap_weak`."""
    return Determinism(step, code, make_context, effects).process


class Determinism:
    """The code of one weak step, called twice for each record.

    Args:
        code: the user's `process_record`.
        make_context: of the step's kind, for some effects.
        effects: those that count.
    """

    __slots__ = ("_code", "_effects", "_lineage", "_make_context", "_step", "_trial")

    def __init__(
        self,
        step: Step,
        code: UserCode,
        make_context: Callable[[Step, Effects], Context[Any, Any]],
        effects: Effects,
    ) -> None:
        self._step = step
        self._effects = effects
        self._code = code
        self._trial = Effects()
        self._trial.keeper = effects.keeper
        self._lineage = self._trial.lineage = WeakIds(step.id, step.run)
        self._make_context = make_context

    async def process(self, record: Record[Any], context: Context[Any, Any]) -> None:
        """Call the code on trial, and then in earnest, with the state as it was before.

        If it raises on trial, that is what it does with the record: nothing is compared.

        Raises:
            NotTheSameAgain: it did not do the same again.
        """
        assert isinstance(record, Delivery)
        cell = context._cell
        first = await self._try(record, context, cell)
        bare: list[Said] | None = None
        if isinstance(cell, KeyState):
            cell.revert()
            if not self._stateless:
                bare = await self._try_bare(record, context, cell)
        mark = len(self._effects.caused)
        try:
            await self._code(record, context)
        except GeneratorExit:
            raise
        except BaseException as error:
            if is_ours(error):
                raise_ours(error)
            raise self._unlike(record, first, f"raised {reason(error)}", "again") from error
        again = _said(self._effects.caused[mark:])
        if again != first:
            raise self._unlike(record, first, _text(again), "again")
        if bare is not None and bare != again:
            raise self._unlike(record, again, _text(bare), "as if nothing had come before")

    @property
    def _stateless(self) -> bool:
        layout = self._step.node.layout
        return layout is None or layout.stateless

    async def _try_bare(
        self, record: Delivery[Any], context: Context[Any, Any], cell: KeyState
    ) -> list[Said]:
        """On a key that nothing is kept of."""
        bare = KeyState(cell.cache, cell.key, cell.key_text, cell.slot)
        size = bare.size
        bare.fill([], complete=True)
        try:
            return await self._try(record, context, bare)
        finally:
            cell.cache.size -= bare.size - size

    async def _try(
        self, record: Delivery[Any], context: Context[Any, Any], cell: Any
    ) -> list[Said]:
        """What the code says; nothing else is left of it."""
        trial = self._make_context(self._step, self._trial)
        trial._open(cell, context._watermark, context._promised, context._now, context._table)
        trial._micros = record.micros
        self._lineage.begin(record)
        try:
            await self._code(record, trial)
            return _said(self._trial.caused)
        finally:
            self._trial.clear()
            trial._end(_ignore)
            self._step.renew(record)

    def _unlike(
        self, record: Delivery[Any], first: list[Said], then: str, how: str
    ) -> NotTheSameAgain:
        return NotTheSameAgain(
            f"{self._step.name!r} was run twice on a record of stream {record.stream!r}, key "
            f"{record.key!r}, value {shown(record.value, 300)}\n"
            f"  at first:  {_text(first)}\n  {how}:  {then}\n"
            'It is added with productions="weak": after a crash it is run again, and must produce the '
            'same then. Add it with productions="strong", or take out what differs from run to run '
            "(the clock, random numbers, what is kept outside of the state)"
        )


def _ignore(error: UserCodeError) -> None:
    """A task of a trial has used its context late: one of the call in earnest does the same."""


def _said(caused: list[Caused]) -> list[Said]:
    return [(output.stream, output.micros, output.encoded) for _, output in caused]


def _text(said: list[Said]) -> str:
    """Productions for people."""
    if not said:
        return "nothing"
    lines = [
        f"{stream} {encoded.decode()[:200]} at {from_micros(micros).isoformat()}"
        for stream, micros, encoded in said[:MOST_SHOWN]
    ]
    if len(said) > MOST_SHOWN:
        lines.append(f"and {len(said) - MOST_SHOWN} more")
    return "; ".join(lines)
