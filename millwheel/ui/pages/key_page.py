"""The page of a key: its state, timers, records, dead letters and history, at one moment."""

from __future__ import annotations

from typing import Any

import msgspec

from millwheel.core.codec import encode_key
from millwheel.core.typed_values import key_of
from millwheel.errors import UsageError
from millwheel.store.console.asking import LetterFilter
from millwheel.store.console.inspection import Inspection
from millwheel.store.console.kept_letters import DeadLetterEntry
from millwheel.store.console.key_history import KeyHistory, history_of_key
from millwheel.store.console.one_key import KeyPart, KeyStatus, TimerPlace
from millwheel.store.console.some_keys import BEGINNING, KeyCursor, keyed_steps, some_keys
from millwheel.store.console.step_names import name_of_step
from millwheel.ui.page import Page
from millwheel.ui.pages.letters_page import SHOWN_CHARACTERS

LISTED_KEYS = 50
LISTED_ENTRIES = 100
"""Of entries, and of timers."""
LISTED_LETTERS = 20


class KeyFilters(msgspec.Struct, frozen=True):
    step: str | None = None
    """Name or label; None: the first one."""
    key: str | None = None
    """As JSON, or a plain text; None: keys of the step are listed."""
    entries_after: str = ""
    """Only entries after this one: the next page."""
    timers_after: str | None = None
    """Only timers after this place, as JSON: the next page."""
    keys_after: str | None = None
    """Only keys after this place, as JSON: the next page."""


class StepChoice(msgspec.Struct, frozen=True):
    name: str
    label: str


class ListedKey(msgspec.Struct, frozen=True):
    key: Any


class KeyFigures(msgspec.Struct, frozen=True, kw_only=True):
    steps: list[StepChoice]
    """All that have keys."""
    step: str | None
    """The chosen one; None: the pipeline has no step with keys."""
    keys: list[ListedKey] = []
    """Keys of the step, in the order of their slots, if no key is given."""
    next_key: str | None = None
    """`KeyFilters.keys_after` of the next page; None: these are the last keys."""
    one: KeyStatus | None = None
    """The key, if one is given."""
    letters: list[DeadLetterEntry] = []
    """Dead letters of the key, the newest ones; long values and errors are cut."""
    more_letters: bool = False
    history: KeyHistory | None = None
    is_on_spark: bool
    """Spark has the keys: all this is as it was before."""


def look(inspection: Inspection, pipeline: str, filters: KeyFilters) -> KeyFigures:
    inspection.require_current(pipeline)
    connection = inspection.connection
    labels = inspection.labels(pipeline)
    steps = keyed_steps(connection, pipeline)
    step = next((one.name for one in steps), None)
    if filters.step is not None:
        step = name_of_step(connection, pipeline, filters.step)
    choices = [StepChoice(one.name, labels.get(one.name, one.name)) for one in steps]
    number = next((one.id for one in steps if one.name == step), None)
    if step is not None and number is None:
        names = ", ".join(one.name for one in steps) or "none"
        raise UsageError(f"pipeline {pipeline!r} has no step {step!r} with keys. It has: {names}")
    if filters.key is not None and step is not None:
        return _one(inspection, pipeline, step, filters, choices)
    found: list[Any] = []
    following: KeyCursor | None = None
    if number is not None:
        after = _place(filters.keys_after, KeyCursor, "keys_after") or BEGINNING
        some = some_keys(connection, pipeline, number, LISTED_KEYS, after)
        found, following = some.found, some.next
    return KeyFigures(
        steps=choices,
        step=step,
        keys=[ListedKey(key) for key in found],
        next_key=None if following is None else msgspec.json.encode(following).decode(),
        is_on_spark=inspection.runs_on_spark(pipeline),
    )


def _one(
    inspection: Inspection,
    pipeline: str,
    step: str,
    filters: KeyFilters,
    choices: list[StepChoice],
) -> KeyFigures:
    key = key_of(filters.key or "")
    after_timer = _place(filters.timers_after, TimerPlace, "timers_after")
    part = KeyPart(LISTED_ENTRIES, 0, filters.entries_after, after_timer)
    one = inspection.key(pipeline, step, key, part)
    of_key = LetterFilter(computation=step, key=encode_key(key)[0].decode(), waiting=True)
    letters = inspection.letters(pipeline).newest(
        LISTED_LETTERS + 1, of_key, characters=SHOWN_CHARACTERS
    )
    return KeyFigures(
        steps=choices,
        step=step,
        one=one,
        letters=letters[:LISTED_LETTERS],
        more_letters=len(letters) > LISTED_LETTERS,
        history=history_of_key(inspection.connection, pipeline, step, key),
        is_on_spark=inspection.runs_on_spark(pipeline),
    )


def _place(text: str | None, kind: type[Any], name: str) -> Any:
    """A cursor of an address. `UsageError` if it is wrong."""
    if text is None:
        return None
    try:
        found = msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as error:
        raise UsageError(f"the address has a wrong place in {name}: {error}") from error
    if any("\0" in part for part in found if isinstance(part, str)):
        raise UsageError(f"the address has a wrong place in {name}: Postgres cannot have NUL")
    return found


KEY: Page[KeyFilters] = Page("key", "Key", "What about this key?", "key.html", look, KeyFilters)
