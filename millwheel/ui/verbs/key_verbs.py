"""Change the state and the timers of a key, by its owner."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Literal

import msgspec

from millwheel.core.merge_patch import includes, merged
from millwheel.core.model import Key, from_micros
from millwheel.core.redaction import HIDDEN_VALUE
from millwheel.core.typed_values import key_of, typed_json
from millwheel.errors import UsageError
from millwheel.store.console.asking import Actor
from millwheel.store.console.inspection import Inspection
from millwheel.store.console.one_key import KeyStatus, due_of_timer
from millwheel.store.console.step_names import name_of_step, refusing_steps, stored_nodes
from millwheel.ui.verb import Asked, Foreseen, FormField, Verb, VerbDesk

SHOWN_CHARACTERS = 4_000
"""Of a state, before and after."""


class StateChangeForm(msgspec.Struct, frozen=True):
    step: str
    key: str
    """As JSON, or a plain text."""
    merge: str | None = None
    """JSON."""
    value: str | None = None
    """JSON; either this or `merge`."""
    condition: str | None = None
    """JSON."""

    def payload(self) -> dict[str, Any]:
        """Of the request. `UsageError` if the fields do not fit together, or hold no JSON."""
        if (self.merge is None) == (self.value is None):
            raise UsageError(f"{NEEDS_CHANGES}, and not both")
        return _given({"merge": self.merge, "value": self.value, "if": self.condition})


class StateDeletionForm(msgspec.Struct, frozen=True):
    step: str
    key: str
    condition: str | None = None
    """JSON."""

    def payload(self) -> dict[str, Any]:
        return _given({"if": self.condition})


class OneTimerForm(msgspec.Struct, frozen=True):
    step: str
    key: str
    tag: str = ""
    kind: Literal["watermark", "wall"] = "watermark"

    def payload(self) -> dict[str, Any]:
        return {"tag": self.tag, "kind": self.kind}


NEEDS_CHANGES = "write the fields to change, or the whole new state"

KeyForm = StateChangeForm | StateDeletionForm | OneTimerForm

FIELD_NAMES = {"merge": "changes", "value": "new state", "if": "condition"}

STEP_AND_KEY = {
    "step": FormField("step"),
    "key": FormField("key", hint='JSON, as in 13 or ["JFK", 4]; other words are a text'),
}

CONDITION = {
    "condition": FormField(
        "condition",
        "lines",
        "JSON: carry it out only if the state has these fields with these values then; leave empty "
        "for none",
    )
}

STATE_LABELS = {
    **STEP_AND_KEY,
    "merge": FormField(
        "changes",
        "lines",
        'JSON: fields to change, as in {"total": 3}; the others stay, and null removes one (RFC '
        "7396)",
    ),
    "value": FormField("new state", "lines", "JSON: the whole state, instead of changes"),
    **CONDITION,
}

TIMER_LABELS = {
    **STEP_AND_KEY,
    "tag": FormField("tag", hint="leave empty for the timer without a tag"),
    "kind": FormField("kind", hint="watermark: fires by event time; wall: fires by the clock"),
}


def _given(fields: dict[str, str | None]) -> dict[str, Any]:
    """The JSON of the fields that are filled in."""
    return {
        name: typed_json(text, FIELD_NAMES[name])
        for name, text in fields.items()
        if text is not None
    }


def _ask(desk: VerbDesk, actor: Actor, form: KeyForm, *, verb: str) -> Asked:
    """Ask the owner of a key, as the command does."""
    key, payload = key_of(form.key), form.payload()
    with desk.asking_owners() as asking:
        batch = asking.ask(actor, verb, form.step, key, payload)
    return Asked(batch, filters={"batch": batch})


def _look(inspection: Inspection, desk: VerbDesk, form: KeyForm) -> tuple[KeyStatus, list[str]]:
    """The key, and words about its owner. `UsageError` if no owner could ever carry it out."""
    inspection.require_owners(desk.pipeline)
    found = inspection.key(desk.pipeline, form.step, key_of(form.key))
    if found.computation in refusing_steps(stored_nodes(inspection.connection, desk.pipeline)):
        raise UsageError(
            f"{found.computation!r} has weak, tree or bundle productions: its owners commit no "
            "state with them, and refuse all requests"
        )
    return found, list(_about_owner(found))


def _about_owner(found: KeyStatus) -> Iterator[str]:
    if found.owner is None:
        yield (
            "No live worker owns the key now: the request waits until a worker has claimed it. The "
            "page Log can take it back until then"
        )
    if found.parked is not None:
        yield "The key is parked, which this does not change"


# -- state ---------------------------------------------------------------------------------------


def _foresee_state(desk: VerbDesk, form: StateChangeForm) -> Foreseen:
    nothing_yet = form.merge is None and form.value is None
    payload = {} if nothing_yet else form.payload()
    with desk.inspecting() as inspection:
        found, words = _look(inspection, desk, form)
    before, text = _plain(found), _Shown(desk)
    now = "the key has no state" if found.state is None else f"the state is now {text(before)}"
    if nothing_yet:
        return Foreseen([now, f"{NEEDS_CHANGES}, and look again", *words], False)
    if not _holds(found, payload):
        return Foreseen([now, DOES_NOT_HOLD, *words], False)
    if found.state is None and "merge" in payload:
        becomes = "a new one gets the changes, with the defaults of its type for the rest"
    else:
        after = merged(before, payload["merge"]) if "merge" in payload else payload["value"]
        if found.state is not None and _sorted(after) == _sorted(before):
            return Foreseen([now, "nothing would change", *words], False)
        becomes = f"it becomes {text(after)}"
    rules = (
        "the owner does it between two records, and refuses what the type of the state does not "
        "take; entries of collections and timers stay"
    )
    return Foreseen([now, becomes, rules, *words])


def _foresee_deletion(desk: VerbDesk, form: StateDeletionForm) -> Foreseen:
    payload = form.payload()
    with desk.inspecting() as inspection:
        found, words = _look(inspection, desk, form)
    if found.state is None and found.entries_total == 0:
        return Foreseen(["the key has no state: nothing would change", *words], False)
    lines = ["the key has entries of collections only"]
    if found.state is not None:
        lines = [f"the state is now {_Shown(desk)(_plain(found))}"]
    if not _holds(found, payload):
        return Foreseen([*lines, DOES_NOT_HOLD, *words], False)
    if found.entries_total != 0:
        entries = "more than 100,000" if found.entries_total is None else f"{found.entries_total:,}"
        lines.append(f"entries of its collections, which are deleted too: {entries}")
    lines.append("the key begins again with the defaults of its type; its timers stay")
    return Foreseen([*lines, *words])


def _sorted(state: Any) -> bytes:
    """For a comparison: to Python, true equals 1."""
    return msgspec.json.encode(state, order="sorted")


def _plain(found: KeyStatus) -> Any:
    return None if found.state is None else msgspec.json.decode(found.state)


def _holds(found: KeyStatus, payload: dict[str, Any]) -> bool:
    """Whether the condition holds now, as far as the stored state says: of a key without one, only
    its owner knows the defaults."""
    return found.state is None or "if" not in payload or includes(_plain(found), payload["if"])


DOES_NOT_HOLD = "the condition does not hold"


class _Shown:
    """Writes states as JSON of limited length, unless the pages hide values."""

    def __init__(self, desk: VerbDesk) -> None:
        self._hides = desk.redacts

    def __call__(self, state: Any) -> str:
        if self._hides:
            return HIDDEN_VALUE
        text = msgspec.json.encode(state).decode()
        return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


# -- timers --------------------------------------------------------------------------------------


def _foresee_timer(desk: VerbDesk, form: OneTimerForm, *, fires: bool) -> Foreseen:
    with desk.inspecting() as inspection:
        found, words = _look(inspection, desk, form)
        due = _due(inspection, desk.pipeline, form, key_of(form.key))
    if due is None:
        return Foreseen(
            [f"the key has no {form.kind} timer with the tag {form.tag!r} now", *words], False
        )
    at = from_micros(due).isoformat()
    if fires:
        what = f"runs process_timer of {found.computation} now, with the time {at} that it is due"
        return Foreseen([what, "the timer is gone then, unless the code sets it again", *words])
    return Foreseen(
        [f"cancels the {form.kind} timer with the tag {form.tag!r}, which is due at {at}", *words]
    )


def _due(inspection: Inspection, pipeline: str, form: OneTimerForm, key: Key) -> int | None:
    name = name_of_step(inspection.connection, pipeline, form.step)
    return due_of_timer(inspection.connection, pipeline, name, key, (form.kind, form.tag))


# -- the verbs -----------------------------------------------------------------------------------


SET_STATE = Verb(
    "set_state",
    "Change the state",
    StateChangeForm,
    _foresee_state,
    partial(_ask, verb="set_state"),
    STATE_LABELS,
)
DELETE_STATE = Verb(
    "delete_state",
    "Delete the state",
    StateDeletionForm,
    _foresee_deletion,
    partial(_ask, verb="delete_state"),
    {**STEP_AND_KEY, **CONDITION},
    is_final=True,
)
CANCEL_TIMER = Verb(
    "cancel_timer",
    "Cancel the timer",
    OneTimerForm,
    partial(_foresee_timer, fires=False),
    partial(_ask, verb="cancel_timer"),
    TIMER_LABELS,
    is_final=True,
)
FIRE_TIMER = Verb(
    "fire_timer",
    "Fire the timer now",
    OneTimerForm,
    partial(_foresee_timer, fires=True),
    partial(_ask, verb="fire_timer"),
    TIMER_LABELS,
    is_final=True,
)
