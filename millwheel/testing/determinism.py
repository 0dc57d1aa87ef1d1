"""Tests run weak code twice on each record and compare the productions.

Productions of weak code must depend on the record alone: when their sender starts over, the code
makes them again, and one that differs then is lost or counts twice. So a test first calls the code
on trial, with effects that are thrown away, and then in earnest; both calls must produce the same
values to the same streams, with the same timestamps, in the same order. For code with a state that
declares `Computation.order_insensitive`, there is a trial with an empty state as well.

A test does not detect differences that only appear in another process, such as the order of a set
of strings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millwheel.context import Context, call_of, end_context
from millwheel.core.codec import reason, shown
from millwheel.core.effects import Call, Effects
from millwheel.core.model import Delivery, Record, from_micros
from millwheel.errors import NotTheSameAgain, UserCodeError
from millwheel.runtime.environment import UserCode
from millwheel.runtime.interval.step import Step
from millwheel.runtime.keys.key_state import KeyState
from millwheel.runtime.modes.ack_chain import Caused
from millwheel.runtime.process.tasks import is_ours, raise_ours
from millwheel.runtime.seen.weak_ids import WeakIds

Output = tuple[str, int, bytes]
"""A production: its stream, its timestamp in microseconds, and its encoded value."""

MOST_SHOWN = 20


def twice(
    step: Step,
    code: UserCode,
    make_context: Callable[[Step, Call], Context[Any, Any]],
    effects: Effects,
) -> UserCode:
    """Wrap user code so that each record runs twice and both runs are compared
    (`Options.wrap_weak`)."""
    return Determinism(step, code, make_context, effects).process


class Determinism:
    """The code of one weak step, called twice for each record.

    Args:
        code: the user's `process_record`.
        make_context: makes a context of the step's kind that writes to the given effects.
        effects: the effects of the calls in earnest.
    """

    __slots__ = ("_code", "_effects", "_lineage", "_make_context", "_step", "_trial")

    def __init__(
        self,
        step: Step,
        code: UserCode,
        make_context: Callable[[Step, Call], Context[Any, Any]],
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
        """Call the code on trial, and then in earnest from the same state.

        An error on trial is the result for the record: it is raised, and nothing is compared.

        Raises:
            NotTheSameAgain: the calls did not produce the same.
        """
        assert isinstance(record, Delivery)
        cell = call_of(context).cell
        first = await self._try(record, context, cell)
        without_state: list[Output] | None = None
        if isinstance(cell, KeyState):
            cell.revert()
            if not self._stateless:
                without_state = await self._try_without_state(record, context, cell)
        mark = len(self._effects.caused)
        try:
            await self._code(record, context)
        except GeneratorExit:
            raise
        except BaseException as error:
            if is_ours(error):
                raise_ours(error)
            raise self._difference(record, first, f"raised {reason(error)}", "again") from error
        again = _outputs(self._effects.caused[mark:])
        if again != first:
            raise self._difference(record, first, _text(again), "again")
        if without_state is not None and without_state != again:
            raise self._difference(record, again, _text(without_state), "with an empty state")

    @property
    def _stateless(self) -> bool:
        layout = self._step.node.layout
        return layout is None or layout.stateless

    async def _try_without_state(
        self, record: Delivery[Any], context: Context[Any, Any], cell: KeyState
    ) -> list[Output]:
        empty = KeyState(cell.cache, cell.key, cell.key_text, cell.slot)
        size = empty.size
        empty.fill([], complete=True)
        try:
            return await self._try(record, context, empty)
        finally:
            cell.cache.size -= empty.size - size

    async def _try(
        self, record: Delivery[Any], context: Context[Any, Any], cell: Any
    ) -> list[Output]:
        """Call the code on trial; return its productions, and drop its other effects."""
        step, known = self._step, call_of(context)
        call = Call(step.name, step.routes, self._trial)
        call.open(cell, known.watermark, known.promised, known.now)
        call.share(known.table)
        call.micros = record.micros
        trial = self._make_context(step, call)
        self._lineage.begin(record)
        try:
            await self._code(record, trial)
            return _outputs(self._trial.caused)
        finally:
            self._trial.clear()
            end_context(trial, _ignore)
            self._step.renew(record)

    def _difference(
        self, record: Delivery[Any], first: list[Output], then: str, how: str
    ) -> NotTheSameAgain:
        return NotTheSameAgain(
            f"{self._step.node.label!r} ran twice on a record of stream {record.stream!r}, key "
            f"{record.key!r}, value {shown(record.value, 300)}, with different results\n  at "
            f'first:  {_text(first)}\n  {how}:  {then}\nIt was added with productions="weak": '
            "after a crash it runs again, and must produce the same. Add it with "
            'productions="strong", or remove the cause of the difference (the clock, random '
            "numbers, data outside of the state)"
        )


def _ignore(error: UserCodeError) -> None:
    """Ignore a task of a trial that uses its context late: the call in earnest reports the same."""


def _outputs(caused: list[Caused]) -> list[Output]:
    return [(output.stream, output.micros, output.encoded) for _, output in caused]


def _text(outputs: list[Output]) -> str:
    if not outputs:
        return "nothing"
    lines = [
        f"{stream} {encoded.decode()[:200]} at {from_micros(micros).isoformat()}"
        for stream, micros, encoded in outputs[:MOST_SHOWN]
    ]
    if len(outputs) > MOST_SHOWN:
        lines.append(f"and {len(outputs) - MOST_SHOWN} more")
    return "; ".join(lines)
