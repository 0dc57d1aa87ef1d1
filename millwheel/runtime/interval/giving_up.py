"""Gives up on a record or timer that cannot be processed: a dead letter, or an error that stops
all."""

from __future__ import annotations

import traceback
from shlex import quote
from typing import Any

import msgspec

from millwheel.core.codec import LETTER_CHARACTERS, reason, shown, storable
from millwheel.core.counters import DEAD_LETTERS
from millwheel.core.effects import Effects
from millwheel.core.model import Delivery, Firing
from millwheel.core.redaction import redacts, shown_key
from millwheel.errors import CannotCarryOut, ItemAtFault, SetAside, UserCodeError
from millwheel.runtime.interval.key_requests import KeyRequest, ParkedRow
from millwheel.runtime.interval.step import Step
from millwheel.runtime.interval.work import Item
from millwheel.store.port.requests import DeadLetter, SettledRequest

WAITS = "waits behind an earlier record of its key, which has failed"


def give_up(step: Step, item: Item, error: BaseException, attempts: int, now: int) -> Effects:
    """Give up on an item that cannot be processed.

    Returns:
        Effects with its dead letter.

    Raises:
        UserCodeError: the computation was added with ``on_error="fail"``.
    """
    if isinstance(item, KeyRequest):
        return failed(step, item, error, attempts, now)
    node = step.node
    key = item.key
    subject = (
        f"record of stream {_stream_of(step, item)!r}"
        if isinstance(item, Delivery)
        else f"timer {item.timer.tag!r}"
    )
    if node.on_error == "fail" and not isinstance(error, SetAside):
        stopped = UserCodeError(
            f"{node.name!r} failed on a {subject}, key {shown_key(key)}, {_place(item)}: "
            f"{reason(error)}\nNothing of it was committed. Fix the code and start again, or add "
            'the computation with on_error="dead_letter" to set such records aside, or "park" to '
            "keep their keys in order. To set this one aside: millwheel set-aside "
            f"{quote(node.name)} {quote(name_in_store(item))} --key "
            + ("KEY, its key as JSON" if redacts() else quote(item.key_text.decode()))
        )
        stopped.item = ItemAtFault(node.name, name_in_store(item), key=item.key_text.decode())
        raise stopped from error
    effects = Effects()
    effects.settled += settled_by(error)
    effects.dead_letters.append(dead_letter(step, item, error, attempts, now))
    effects.counters[DEAD_LETTERS] = 1
    if isinstance(item, Firing):
        effects.timers[(item.key_text, item.timer.kind, item.timer.tag)] = None
    return effects


def _stream_of(step: Step, item: Delivery[Any]) -> str:
    return step.node.shown_names.get(item.stream, item.stream)


def _place(item: Delivery[Any] | Firing) -> str:
    if isinstance(item, Delivery):
        if item.in_tree:
            return f"passed on under token {item.token}"
        # A record on Spark has the number that its sender gave it in this batch.
        return f"log {item.log} number {item.seq}" if item.log else f"number {item.seq}"
    return f"due {item.timer.at.isoformat()}"


def name_in_store(item: Delivery[Any] | Firing) -> str:
    """Name of a record or timer within its key: the same when it runs again."""
    if isinstance(item, Delivery):
        return f"record:{item.id.hex()}"
    timer = item.timer
    return f"timer:{msgspec.json.encode([timer.kind, timer.tag, timer.micros]).decode()}"


def settled_by(error: BaseException) -> list[SettledRequest]:
    """The operator's request that is done with an item that was given up on."""
    return [SettledRequest(error.request, "done")] if isinstance(error, SetAside) else []


def failed(
    step: Step, request: KeyRequest, error: BaseException, attempts: int, now: int
) -> Effects:
    """Settle a request that cannot be carried out: it has no effect, but for a note on its dead
    letter.

    A row of a parked key that cannot run has failed, whatever the reason: no operator has asked for
    it.
    """
    if isinstance(error, CannotCarryOut) and not isinstance(request, ParkedRow):
        settled = SettledRequest(request.id, "refused", storable(str(error)))
    else:
        about = None if request.letter is None else request.letter.id
        letter = _letter(step, request, error, attempts, now)
        settled = SettledRequest(request.id, "failed", letter.error, about, letter)
    effects = Effects()
    effects.settled.append(settled)
    return effects


def _letter(
    step: Step, request: KeyRequest, error: BaseException, attempts: int, now: int
) -> DeadLetter:
    lines = storable("".join(traceback.format_exception(error)))[-LETTER_CHARACTERS:]
    text = storable(reason(error))
    return DeadLetter(
        request.slot, step.id, "", None, request.key_text, "", None, "", text, lines, attempts, now
    )


def dead_letter(
    step: Step, item: Delivery[Any] | Firing, error: BaseException, attempts: int, now: int
) -> DeadLetter:
    lines = storable("".join(traceback.format_exception(error)))
    texts = storable(reason(error)), lines[-LETTER_CHARACTERS:]
    if isinstance(item, Delivery):
        return _letter_of(step, item, texts, attempts, now)
    return DeadLetter(
        item.slot, step.id, "timer", None, item.key_text,
        _json_text(f"{item.timer.kind} {item.timer.tag}"),
        item.timer.micros, _place(item), *texts, attempts, now,
    )  # fmt: skip


def waiting_letter(step: Step, record: Delivery[Any], watermark: int, now: int) -> DeadLetter:
    letter = _letter_of(step, record, (WAITS, ""), 0, now)
    return letter._replace(parked="waiting", watermark=watermark)


def _letter_of(
    step: Step, record: Delivery[Any], texts: tuple[str, str], attempts: int, now: int
) -> DeadLetter:
    return DeadLetter(
        record.slot, step.id, _stream_of(step, record), record.id, record.key_text,
        _text(record.encoded) or _json_text(record.value), record.micros, _place(record), *texts,
        attempts, now, version=step.streams[record.stream].version,
    )  # fmt: skip


def _text(encoded: bytes) -> str:
    """The JSON of a record as text; a source of the user's may have passed on anything."""
    return storable(encoded.decode(errors="backslashreplace"))


def _json_text(value: Any) -> str:
    """A value as JSON text, or its description; without the codecs' limits: the column is text."""
    try:
        return msgspec.json.encode(value).decode()
    except Exception:
        return storable(shown(value, LETTER_CHARACTERS))
