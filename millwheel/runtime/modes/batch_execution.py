"""Running user code over a numbered bundle (decision 30).

A bundle is one unit: the engine searches for no faulty record in it, and there is no state to
revert. The whole bundle succeeds, is tried again, or is given up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from millwheel.bundles import BundleId, RecordsRefused
from millwheel.context import BundleContext
from millwheel.core.codec import reason
from millwheel.core.counters import DEAD_LETTERS, WITHHELD
from millwheel.core.effects import BundleCall, Effects
from millwheel.core.model import Delivery, Key, from_micros
from millwheel.core.redaction import shown_key
from millwheel.errors import CodeBlocked, InvariantBroken, OutputError, SetAside, UserCodeError
from millwheel.runtime.environment import Environment
from millwheel.runtime.interval.giving_up import dead_letter, settled_by
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.modes.batches import Batches
from millwheel.runtime.process.tasks import in_own_task, is_ours, raise_ours
from millwheel.state import UNKNOWN
from millwheel.store.port.requests import SettledRequest


@dataclass
class Stateless:
    """Stands for the state of the producing key, that of the first record: a bundle has none."""

    key: Key
    key_text: bytes
    slot: int
    opened: Any = UNKNOWN

    def open_state(self) -> NoReturn:
        raise InvariantBroken("a bundle has no state")

    def replace_state(self, state: Any) -> NoReturn:
        raise InvariantBroken("a bundle has no state")


async def run_batch(env: Environment, interval: Interval, batches: Batches) -> Effects:
    """Call `process_bundle` with the open bundle.

    Returns:
        The effects of the call, or the dead letters if the bundle is given up.

    Raises:
        UserCodeError: all attempts failed, and the computation has ``on_error="fail"``.
    """
    node, now = interval.step.node, env.now()
    refusal = batches.refusal
    if refusal is not None and refusal.tries > node.retries:
        return _give_up(interval, batches, refusal.error, refusal.tries, now)
    refused: dict[int, str] = {}
    asked: list[SettledRequest] = []
    for place, member in enumerate(batches.members if interval.turns.careful else ()):
        try:
            interval.turns.refuse(member)
        except CodeBlocked as error:
            return _give_up(interval, batches, error, 1, now)
        except SetAside as error:
            refused[place] = str(error)
            asked += settled_by(error)
    attempt = 0
    while True:
        attempt += 1
        effects = Effects()
        effects.keeper = interval.watermarks
        try:
            await _call(env, interval, batches, effects, refused, now)
        except GeneratorExit:
            raise
        except RecordsRefused as error:
            new = {place: why for place, why in error.reasons.items() if place not in refused}
            if not new.keys() <= set(range(len(batches.members))):
                raise UserCodeError(
                    f"{node.label!r} refused places {sorted(new)} of a bundle of "
                    f"{len(batches.members)} records; a place counts all records of the bundle "
                    "from 0, refused ones too"
                ) from error
            if not new or node.on_error == "fail":
                return _give_up(interval, batches, error, attempt, now)
            refused.update(new)
            attempt -= 1
        except BaseException as error:
            if is_ours(error):
                raise_ours(error)
            if isinstance(error, OutputError):
                raise  # no record is at fault
            if attempt > node.retries:
                return _give_up(interval, batches, error, attempt, now)
        else:
            _set_aside(effects, interval, batches, refused, now)
            effects.settled += asked
            return effects
        effects.clear()
        for member in batches.members:
            interval.step.renew(member)


async def _call(
    env: Environment,
    interval: Interval,
    batches: Batches,
    effects: Effects,
    refused: dict[int, str],
    now: int,
) -> None:
    """Call user code once, without the records that it has refused."""
    node, members = interval.step.node, batches.members
    if interval.step.withholds:
        effects.count(WITHHELD, len(members) - len(refused))
        return
    assert node.computation is not None
    first = members[0]
    bundle_id = BundleId(
        interval.id,
        batches.number,
        batches.previous,
        batches.is_replay,
        batches.closed_at,
        batches.inherited,
        dict(refused),
    )
    call = BundleCall(node.name, interval.step.routes, effects)
    call.bundle_id, call.owner = bundle_id, BundleOwner(env, interval)
    call.open(
        Stateless(first.key, first.key_text, first.slot),
        interval.watermarks.input,
        interval.watermarks.promised,
        now,
    )
    times = [member.micros for member in members]
    call.micros, call.latest = min(times), from_micros(max(times))
    context: BundleContext[Any, Any] = BundleContext(call)
    left = [member for place, member in enumerate(members) if place not in refused]
    try:
        await in_own_task(node.computation.process_bundle(tuple(left), context))
    finally:
        env.late_uses.end(context)


class BundleOwner:
    """Answers `BundleContext` about the bundle's scope."""

    def __init__(self, env: Environment, interval: Interval) -> None:
        self._env = env
        self._interval = interval

    async def is_current(self) -> bool:
        """Whether this worker still owns the scope, by the store."""
        env, interval = self._env, self._interval
        return await env.patiently(
            lambda: env.store.is_owner(interval.id, interval.commits.sequencer)
        )

    async def store_id(self) -> str:
        return await self._env.store_id()

    def own_name(self, name: str) -> str:
        return self._env.own_name(name)


def _set_aside(
    effects: Effects, interval: Interval, batches: Batches, refused: dict[int, str], now: int
) -> None:
    """Make dead letters of records that were refused; the others are delivered."""
    for place, why in refused.items():
        letter = dead_letter(interval.step, batches.members[place], UserCodeError(why), 1, now)
        effects.dead_letters.append(letter)
    if refused:
        effects.count(DEAD_LETTERS, len(refused))


def _give_up(
    interval: Interval, batches: Batches, error: BaseException, attempts: int, now: int
) -> Effects:
    """Give up a bundle that cannot be delivered.

    Returns:
        Effects that make all its records dead letters, for the commit that marks its number as
        used.

    Raises:
        UserCodeError: the computation has ``on_error="fail"``.
    """
    members = batches.members
    node = interval.step.node
    if node.on_error == "fail" and isinstance(error, RecordsRefused):
        place, why = min(error.reasons.items())
        raise UserCodeError(
            f"{node.label!r} cannot write {len(error.reasons)} of {len(members)} records in bundle "
            f"{batches.number} of scope {interval.id}, the first {_place(members[place])}: "
            f"{why}\nNo record of the bundle was acknowledged; it will be delivered again with "
            "the same number. Correct the code or table at fault and start again, or set "
            'the records aside: on_error="dead_letter" where the sink or the computation is added'
        ) from error
    if node.on_error == "fail":
        raise UserCodeError(
            f"{node.label!r} failed on bundle {batches.number} of scope {interval.id}, "
            f"{len(members)} records, the first {_place(members[0])}: {reason(error)}\nNo record "
            "of the bundle was acknowledged; it will be delivered again with the same number. "
            'Fix the code and start again, or add the computation with on_error="dead_letter" to '
            "set such bundles aside"
        ) from error
    effects = Effects()
    effects.dead_letters += [dead_letter(interval.step, d, error, attempts, now) for d in members]
    effects.counters[DEAD_LETTERS] = len(members)
    return effects


def _place(member: Delivery[Any]) -> str:
    return f"of key {shown_key(member.key)}, log {member.log} number {member.seq}"
