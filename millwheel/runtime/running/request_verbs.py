"""Carries out operators' requests to a key, in the key's turn (decision 59).

Each verb of `VERBS` is one function. It changes the key as user code would, through the context of
the turn, so the commit that carries its effects is fenced, ordered and replayed like any other. It
returns a few words for the operator.

Raises of a verb:
    CannotCarryOut: the request cannot be carried out, or its condition does not hold.
    Exception: user code has failed again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from millwheel.core.codec import apply_migrations, shown
from millwheel.core.merge_patch import includes, merged
from millwheel.core.model import Delivery, Timer, TimerKind, from_micros
from millwheel.errors import CannotCarryOut, MigrationFailed
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.key_requests import UNPARK, KeyRequest
from millwheel.runtime.interval.step import Step
from millwheel.runtime.keys.key_state import KeyState
from millwheel.runtime.routes.readers import KeyedReader
from millwheel.runtime.running.step_code import StepCode
from millwheel.store.port.requests import KeptLetter, SettledRequest
from millwheel.streams import Input, Stream

USERS_KINDS = ("watermark", "wall")
"""Kinds of timers that an operator may change: those that call `process_timer`."""


class RequestTurn(NamedTuple):
    """The turn of a key in which a request is carried out."""

    request: KeyRequest
    interval: Interval
    state: KeyState
    code: StepCode


Verb = Callable[[RequestTurn], Awaitable[str]]


async def carry_out(turn: RequestTurn) -> None:
    """Carry out a request, and settle it among the effects of the turn."""
    request = turn.request
    verb = VERBS.get(request.verb)
    if verb is None:
        known = ", ".join(VERBS)
        raise CannotCarryOut(f"this worker's code knows no {request.verb!r}; it knows: {known}")
    detail = await verb(turn)
    about = None if request.letter is None else request.letter.id
    turn.code.effects.settled.append(SettledRequest(request.id, "done", detail, about))


# -- state -----------------------------------------------------------------------------------------


async def _set_state(turn: RequestTurn) -> str:
    before = _plain(turn)
    _require(before, turn.request.payload.get("if"))
    payload = turn.request.payload
    after = merged(before, payload["merge"]) if "merge" in payload else payload["value"]
    try:
        turn.state.amend(msgspec.json.encode(after))
    except msgspec.ValidationError as error:
        raise CannotCarryOut(f"{shown(after)} cannot be the state: {error}") from error
    return f"was {msgspec.json.encode(before).decode()}"


async def _delete_state(turn: RequestTurn) -> str:
    before = _plain(turn)
    _require(before, turn.request.payload.get("if"))
    turn.code.context.state = turn.state.cache.layout.new()
    return f"was {msgspec.json.encode(before).decode()}"


def _plain(turn: RequestTurn) -> Any:
    layout = turn.state.cache.layout
    if layout.stateless:
        raise CannotCarryOut(f"{turn.interval.step.node.name!r} has no state")
    return msgspec.json.decode(layout.encode(turn.state.open_state()))


def _require(state: Any, condition: Any) -> None:
    """Compare the state with a condition: some of its fields, or the whole of another state."""
    if condition is None or includes(state, condition):
        return
    raise CannotCarryOut(
        f"the condition does not hold: the state is {msgspec.json.encode(state).decode()}"
    )


# -- timers ----------------------------------------------------------------------------------------


async def _cancel_timer(turn: RequestTurn) -> str:
    due = await _due(turn)
    _remove(turn)
    return f"was due {from_micros(due).isoformat()}"


async def _fire_timer(turn: RequestTurn) -> str:
    """Run `process_timer` now, with the time for which the timer was set."""
    due = await _due(turn)
    _remove(turn)
    await _run_timer(turn, turn.request.payload["tag"], turn.request.payload["kind"], due)
    return f"was due {from_micros(due).isoformat()}"


async def _due(turn: RequestTurn) -> int:
    """Raises:
    CannotCarryOut: there is no such timer.
    """
    kind, tag = turn.request.payload.get("kind"), turn.request.payload.get("tag")
    if kind not in USERS_KINDS or not isinstance(tag, str):
        kinds = " or ".join(USERS_KINDS)
        raise CannotCarryOut(
            f"it names no timer: a timer has a kind, {kinds}, and a text as its tag"
        )
    name = (turn.request.key_text, kind, tag)
    if name in turn.code.effects.timers:
        decided = turn.code.effects.timers[name]
        due = None if decided is None else decided[0]
    else:
        known, due = turn.interval.timers.due_at(name)
        if not known:
            stored = await turn.request.read_timer(kind, tag)
            due = None if stored is None else stored[0]
    if due is None:
        raise CannotCarryOut(f"the key has no {kind} timer with the tag {tag!r}")
    return due


def _remove(turn: RequestTurn) -> None:
    kind, tag = turn.request.payload["kind"], turn.request.payload["tag"]
    turn.code.effects.timers[(turn.request.key_text, kind, tag)] = None


async def _run_timer(turn: RequestTurn, tag: str, kind: TimerKind, due: int) -> None:
    await turn.code.process_timer(Timer(tag, kind, due))


# -- dead letters ----------------------------------------------------------------------------------


async def _retry(turn: RequestTurn) -> str:
    """Process a dead letter: its effects, its end and the end of the request are one commit.

    Its record passed dedup when it was given up: the letter itself is processed once.
    """
    letter = _letter(turn)
    if letter.parked == "waiting":
        raise CannotCarryOut(
            "it waits in a parked key: retry or discard the dead letter that stops the key (see "
            "the view parked_keys), and this one follows"
        )
    return await _run_letter(turn, letter)


async def _unpark(turn: RequestTurn) -> str:
    return await _run_letter(turn, _letter(turn))


async def _discard(turn: RequestTurn) -> str:
    """Delete a dead letter of a parked key; the next one of its key has its turn."""
    _letter(turn)
    return ""


def _letter(turn: RequestTurn) -> KeptLetter:
    letter = turn.request.letter
    if letter is None:
        raise CannotCarryOut("the dead letter is gone")
    return letter


async def _run_letter(turn: RequestTurn, letter: KeptLetter) -> str:
    """Process the record or timer of a letter. In a parked key it sees the low watermark that it
    met."""
    if letter.watermark is not None:
        turn.code.call.watermark = letter.watermark
    if letter.stream == "timer":
        kind, _, tag = msgspec.json.decode(letter.value, type=str).partition(" ")
        assert letter.ts is not None
        await _run_timer(turn, tag, kind, letter.ts)  # type: ignore[arg-type]
    else:
        record = _record(turn, letter)
        turn.code.call.micros = record.micros
        await turn.code.process(record, turn.code.context)
    return f"attempt {letter.attempts + 1}"


def _record(turn: RequestTurn, letter: KeptLetter) -> Delivery[Any]:
    """The record of a dead letter, with the value that the operator has given it."""
    step, request = turn.interval.step, turn.request
    hidden = {shown: name for name, shown in step.node.shown_names.items()}
    stream = hidden.get(letter.stream, letter.stream)
    read = step.streams.get(stream)
    if read is None or letter.ts is None:
        raise CannotCarryOut(f"{step.node.name!r} reads no stream {letter.stream!r}")
    if "value" in request.payload:
        text = msgspec.json.encode(request.payload["value"])
    else:
        text = _present_value(read, letter)
    value = read.codec.decode(text)
    _require_key(step, request, stream, value)
    return Delivery(
        request.key, value, letter.ts, stream, request.key_text, request.slot, step.id, letter.ts,
        len(text), text, id=letter.record_id or b"",
    )  # fmt: skip


def _present_value(stream: Stream[Any], letter: KeptLetter) -> bytes:
    """The value of a letter in the present version of its stream's type.

    Raises:
        CannotCarryOut: a migration fails.
    """
    text = letter.value.encode()
    if letter.version is None or letter.version == stream.version:
        return text
    subject = f"stream {letter.stream!r}, dead letter {letter.id}"
    try:
        return apply_migrations(
            text, letter.version, stream.version, stream.migrations, subject, stream.codec.decode
        )
    except MigrationFailed as error:
        raise CannotCarryOut(str(error)) from error


def _require_key(step: Step, request: KeyRequest, stream: str, value: Any) -> None:
    """Refuse a record of another key: its effects would be those of this one.

    Raises:
        CannotCarryOut: the reader's extractor gives another key, for the value that an operator has
            given or by code that has changed since.
    """
    input_ = next(each for each in step.node.inputs if each.stream.name == stream)
    if not isinstance(input_, Input) or input_.extractor is None:
        return
    key, key_text, _ = KeyedReader(step, 0, input_.extractor).address(value, stream)
    if key_text != request.key_text:
        raise CannotCarryOut(
            f"its key would be {shown(key)}, and this dead letter is one of key "
            f"{shown(request.key)}: a retry keeps the key. To count it under the other key, send "
            "the record again, and discard this letter"
        )


VERBS: dict[str, Verb] = {
    "set_state": _set_state,
    "delete_state": _delete_state,
    "cancel_timer": _cancel_timer,
    "fire_timer": _fire_timer,
    "retry": _retry,
    "discard": _discard,
    UNPARK: _unpark,
}
