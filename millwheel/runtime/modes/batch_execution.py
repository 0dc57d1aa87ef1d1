"""Running user code over a numbered bundle (decision 30).

Unlike records of a key (`millwheel.runtime.lane.execution`) a bundle is one thing: there is no culprit to be found
in it, and no state to go back to. It succeeds, is tried again, or is given up as a whole.
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


@dataclass
class Stateless:
    """What stands for the producing key: that of the first record, without its state."""

    key: Key
    key_text: bytes
    slot: int

    def open_state(self) -> NoReturn:
        raise InvariantBroken("a bundle has no state")

    def replace_state(self, state: Any) -> NoReturn:
        raise InvariantBroken("a bundle has no state")


async def run_batch(interval: Interval, batches: Batches, now: int, late_uses: LateUses) -> Effects:
    """Hand the open bundle to user code; gives what it asks for, or what giving up leaves.

    Raises:
        UserCodeError: it failed for good and its computation says ``on_error="fail"``.
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
    """The end of a bundle that cannot be delivered: all its records are dead letters, in the
    commit that makes its number a used one; or an error that stops everything."""
    members = batches.members
    node = interval.step.node
    if node.on_error == "fail":
        raise UserCodeError(
            f"{node.name!r} failed on bundle {batches.number} of scope {interval.id}, "
            f"{len(members)} records, the first {_place(members[0])}: {reason(error)}\n"
            "None of them was acknowledged; the bundle will be given again under its number. Fix the "
            'code and start again, or add the computation with on_error="dead_letter" to set such '
            "bundles aside"
        ) from error
    effects = Effects()
    effects.dead_letters += [dead_letter(interval, d, error, attempts, now) for d in members]
    effects.counters[DEAD_LETTERS] = len(members)
    return effects


def _place(member: Delivery[Any]) -> str:
    return f"of key {shown(member.key, KEY_CHARACTERS)}, log {member.log} number {member.seq}"
