"""Dead letters by error and by key, parked keys, and one letter with its traceback."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from millwheel.core.codec import encode_key
from millwheel.core.typed_values import key_of
from millwheel.store.console.asking import LetterFilter
from millwheel.store.console.inspection import Inspection
from millwheel.store.console.kept_letters import (
    DeadLetterEntry,
    LetterGroups,
    ParkedKeyList,
)
from millwheel.store.console.one_key import KeyPart, KeyStatus
from millwheel.ui.hiding import shown_figures
from millwheel.ui.page import Download, Page, Visit

LISTED = 50

GROUPS = 50

PARKED = 20

SHOWN_CHARACTERS = 301
"""Of a value or an error in a list: one more than the page shows, which says that it is cut."""

OTHERS = 10
"""Letters of the same key that are listed with one of them."""

FIRST_OF_KEY = KeyPart(limit=10)

PORTION = 1_000
"""Letters of an export that one look reads."""

PORTION_BYTES = 4 << 20
"""Of their values, all but the last."""


class LettersFilters(msgspec.Struct, frozen=True):
    step: str | None = None
    """Only those of a computation or an injector, also of a removed one."""
    key: str | None = None
    """Only those of a key: JSON, or a text."""
    error: str | None = None
    """Only those with this in the error."""
    waiting: bool = False
    """Also records that only wait in parked keys."""
    group: Literal["error", "key", "none"] = "error"
    """How they are counted."""
    before: int | None = None
    """Only letters with smaller numbers: the next page."""
    letter: int | None = None
    """Show this one."""

    @property
    def wanted(self) -> LetterFilter:
        return letter_filter(self.step, self.key, self.error, waiting=self.waiting)


class SameKey(msgspec.Struct, frozen=True):
    """The other letters and the state of a letter's key."""

    letters: list[DeadLetterEntry]
    """Its newest other letters, also those that only wait."""
    status: KeyStatus | None
    """Its state, timers and pending records; None: the computation was removed."""


class ShownLetter(msgspec.Struct, frozen=True):
    letter: DeadLetterEntry
    same_key: SameKey | None
    """None: it is a row of a source, which has no key."""


class FailedRecords(msgspec.Struct, frozen=True):
    labels: dict[str, str]
    """Names for display of the steps."""
    letters: list[DeadLetterEntry]
    """Newest first; long values and errors are cut."""
    next_before: int | None
    """`LettersFilters.before` of the next page; None: this is the last one."""
    groups: LetterGroups | None
    """None: a further page, or they are not to be grouped."""
    parked: ParkedKeyList | None
    """None: a further page."""
    one: ShownLetter | None
    """The letter that the filters name."""


def letter_filter(
    step: str | None, key: str | None, error: str | None, *, waiting: bool = False
) -> LetterFilter:
    """The filter of fields that people have filled in; `UsageError` for a text that is no key."""
    text = None if key is None else encode_key(key_of(key))[0].decode()
    return LetterFilter(None, step, text, error, waiting)


def look(inspection: Inspection, pipeline: str, filters: LettersFilters) -> FailedRecords:
    kept = inspection.letters(pipeline)
    labels = inspection.labels(pipeline)
    if filters.letter is not None:
        shown = _shown(inspection, pipeline, filters.letter, labels)
        return FailedRecords(labels, [], None, None, None, shown)
    wanted = filters.wanted
    is_first = filters.before is None
    up_to = None if filters.before is None else filters.before - 1
    found = kept.newest(LISTED + 1, wanted._replace(up_to=up_to), characters=SHOWN_CHARACTERS)
    groups = None
    if is_first and filters.group != "none":
        groups = (kept.by_key if filters.group == "key" else kept.by_error)(wanted, GROUPS)
    return FailedRecords(
        labels,
        found[:LISTED],
        found[LISTED - 1].id if len(found) > LISTED else None,
        groups,
        kept.parked(wanted, PARKED) if is_first else None,
        None,
    )


def _shown(
    inspection: Inspection, pipeline: str, number: int, labels: dict[str, str]
) -> ShownLetter:
    letter = inspection.letters(pipeline).one(number)
    if letter.key is None:
        return ShownLetter(letter, None)
    key: Any = tuple(letter.key) if isinstance(letter.key, list) else letter.key
    of_key = LetterFilter(
        computation=letter.computation, key=encode_key(key)[0].decode(), waiting=True
    )
    others = inspection.letters(pipeline).newest(OTHERS + 1, of_key, characters=SHOWN_CHARACTERS)
    status = None
    if letter.computation in labels:
        status = inspection.key(pipeline, letter.computation, key, FIRST_OF_KEY)
    return ShownLetter(
        letter, SameKey([one for one in others if one.id != number][:OTHERS], status)
    )


def _lines(visit: Visit, filters: LettersFilters) -> Iterator[bytes]:
    """All letters of the filters that are there at the beginning, oldest first, as JSON Lines. Each
    portion is a look of its own, so no snapshot lasts as long as the download."""
    after, up_to = 0, None
    while True:
        with visit.looking() as inspection:
            kept = inspection.letters(visit.pipeline)
            up_to = kept.newest_number() if up_to is None else up_to
            found = kept.portion(
                PORTION,
                filters.wanted._replace(after=after, up_to=up_to),
                most_bytes=PORTION_BYTES,
            )
        if not found:
            return
        lines = shown_figures([one.listed() for one in found], redact=visit.redact)
        yield b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        after = found[-1].id


LETTERS: Page[LettersFilters] = Page(
    "letters", "Failed", "What failed?", "letters.html", look, LettersFilters,
    download=Download("jsonl", "application/x-ndjson", _lines),
)  # fmt: skip
