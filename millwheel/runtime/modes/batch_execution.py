"""Running user code over a numbered bundle (decision 30).

Unlike the records of a key (`millwheel.runtime.lane.execution`), a bundle is one unit: the engine
searches for no faulty record in it, and there is no state to revert. The whole bundle succeeds, is
tried again, or is given up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from millwheel.bundles import BundleId
from millwheel.codec import KEY_CHARACTERS, reason, shown
from millwheel.context import DEAD_LETTERS, BundleContext, Effects
from millwheel.errors import InvariantBroken, UserCodeError
from millwheel.model import Delivery, Key
from millwheel.runtime.interval.dead_letters import dead_letter
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.modes.batches import Batches
from millwheel.runtime.process.late_use import LateUses
from millwheel.runtime.process.tasks import in_own_task, is_ours, raise_ours
from millwheel.state import UNKNOWN


@dataclass
class Stateless:
    """Stands for the state of the producing key, which is that of the first record: a bundle has none."""

    key: Key
    key_text: bytes
    slot: int
    opened: Any = UNKNOWN

    def open_state(self) -> NoReturn:
        raise InvariantBroken("a bundle has no state")

    def replace_state(self, state: Any) -> NoReturn:
        raise InvariantBroken("a bundle has no state")


async def run_batch(interval: Interval, batches: Batches, now: int, late_uses: LateUses) -> Effects:
    """Call `process_bundle` with the open bundle.

    Returns:
        The effects of the call, or the dead letters if the bundle is given up.

    Raises:
        UserCodeError: all attempts failed, and the computation has ``on_error="fail"``.
    """
    node = interval.step.node
    assert node.computation is not None
    members = batches.members
    refusal = batches.refusal
    if refusal is not None and refusal.tries > node.retries:
        return _give_up(interval, batches, refusal.error, refusal.tries, now)
    first = members[0]
    cell = Stateless(first.key, first.key_text, first.slot)
    effects = Effects()
    effects.keeper = interval.watermarks
    for attempt in range(1, node.retries + 2):
        context: BundleContext[Any, Any] = BundleContext(node.name, interval.step.routes, effects)
        context._begin(BundleId(interval.id, batches.number), members)
        context._open(cell, interval.watermarks.input, interval.watermarks.promised, now)
        try:
            await in_own_task(node.computation.process_bundle(tuple(members), context))
        except GeneratorExit:
            raise
        except BaseException as error:
            effects.clear()
            if is_ours(error):
                raise_ours(error)
            if attempt > node.retries:
                return _give_up(interval, batches, error, attempt, now)
        else:
            return effects
        finally:
            late_uses.end(context)
        for member in members:
            interval.step.renew(member)
    raise AssertionError("the last attempt returns or raises")


def _give_up(
    interval: Interval, batches: Batches, error: BaseException, attempts: int, now: int
) -> Effects:
    """Give up a bundle that cannot be delivered.

    Returns:
        Effects that make all its records dead letters, for the commit that marks its number as used.

    Raises:
        UserCodeError: the computation has ``on_error="fail"``.
    """
    members = batches.members
    node = interval.step.node
    if node.on_error == "fail":
        raise UserCodeError(
            f"{node.label!r} failed on bundle {batches.number} of scope {interval.id}, "
            f"{len(members)} records, the first {_place(members[0])}: {reason(error)}\n"
            "No record of the bundle was acknowledged; it will be delivered again with the same "
            'number. Fix the code and start again, or add the computation with on_error="dead_letter" '
            "to set such bundles aside"
        ) from error
    effects = Effects()
    effects.dead_letters += [dead_letter(interval, d, error, attempts, now) for d in members]
    effects.counters[DEAD_LETTERS] = len(members)
    return effects


def _place(member: Delivery[Any]) -> str:
    return f"of key {shown(member.key, KEY_CHARACTERS)}, log {member.log} number {member.seq}"
