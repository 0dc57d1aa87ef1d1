"""Retry, edit and discard dead letters, set a record aside, and withdraw requests."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from millwheel.core.codec import shown
from millwheel.core.quantities import count_of
from millwheel.core.typed_values import key_of, typed_json
from millwheel.errors import UsageError
from millwheel.store.console.asking import ITEM, Actor, LetterFilter, MatchedLetters
from millwheel.store.console.kept_letters import DeadLetterEntry
from millwheel.ui.pages.letters_page import letter_filter
from millwheel.ui.verb import Asked, Foreseen, FormField, Further, Verb, VerbDesk

NUMBER = re.compile("[0-9]{1,18}")

WHICH = {
    "ids": FormField("numbers", hint="of dead letters, separated by commas or spaces"),
    "step": FormField("step", hint="only those of this computation or injector"),
    "key": FormField("key", hint='JSON, for example 13 or ["JFK", 4]; other words are text'),
    "error": FormField("error", hint="only those with this text in the error, in any case"),
    "all": FormField(
        "all dead letters of the pipeline", "check", "needed if no other field selects some of them"
    ),
}


class WhichLetters(msgspec.Struct, frozen=True, kw_only=True):
    ids: str | None = None
    step: str | None = None
    key: str | None = None
    error: str | None = None
    all: bool = False


def _required(form: WhichLetters, verb: str) -> LetterFilter:
    """The letters that a form selects; `UsageError` if it selects none, or all of them without
    `all`."""
    wanted = letter_filter(form.step, form.key, form.error)
    wanted = wanted._replace(ids=None if form.ids is None else _numbers(form.ids))
    if form.all == wanted.selects:
        raise UsageError(
            f"say which dead letters to {verb}: fill in numbers, step, key or error, or check that "
            "all of the pipeline are meant (and not both)"
        )
    return wanted


def _numbers(text: str) -> list[int]:
    found = re.split(r"[,\s]+", text.strip(", \t\r\n"))
    if not all(map(NUMBER.fullmatch, found)):
        raise UsageError(f"numbers {shown(text)}: give numbers of dead letters, as in 12, 13")
    return list(map(int, found))


def _match(desk: VerbDesk, wanted: LetterFilter) -> MatchedLetters:
    with desk.asking() as asking:
        return asking.match(wanted)


# -- retry


class RetriedLetters(WhichLetters, frozen=True, kw_only=True):
    rate: float | None = None
    """Letters a second; None: as fast as their owners can."""


def _foresee_retry(desk: VerbDesk, form: RetriedLetters) -> Foreseen:
    _require_rate(form.rate)
    wanted = _required(form, "retry")
    with desk.inspecting() as inspection:
        inspection.require_owners(desk.pipeline)
    matched = _match(desk, wanted)
    lines = [matched.number(), *matched.of_a_retry()]
    if matched.askable:
        once = "each is processed once, in its key's turn, by the owner of its key"
        then = "" if form.rate is None else _at_a_rate(matched.askable, form.rate)
        lines.append(f"asks for {matched.askable:,}; {once}{then}")
    return Foreseen(lines, matched.askable > 0)


def _at_a_rate(letters: int, rate: float) -> str:
    return f", at most {rate:g} a second: {count_of(math.ceil(letters / rate), 'second')}"


def _require_rate(rate: float | None) -> None:
    if rate is not None and not 0.001 <= rate < math.inf:
        raise UsageError(f"the rate is in letters a second, 0.001 or more, and not {rate:g}")


def _retry(desk: VerbDesk, actor: Actor, form: RetriedLetters) -> Asked:
    _require_rate(form.rate)
    wanted = _required(form, "retry")
    with desk.asking_owners() as asking:
        matched = asking.match(wanted)
        batch, count = asking.retry(actor, matched.ids, rate=form.rate)
        if not count:
            raise UsageError(_nothing_of(matched))
    return _in_log(batch)


def _nothing_of(matched: MatchedLetters) -> str:
    return f"there is nothing to ask for: {'; '.join([matched.number(), *matched.of_a_retry()])}"


def _in_log(batch: int) -> Asked:
    return Asked(batch, "log", {"batch": batch})


RETRY = Verb(
    "retry",
    "Retry dead letters",
    RetriedLetters,
    _foresee_retry,
    _retry,
    {**WHICH, "rate": FormField("most letters a second", "number", "empty: no limit")},
)


# -- edit


class EditedLetter(msgspec.Struct, frozen=True):
    letter: int
    value: str | None = None
    """JSON; None: not given yet."""


def _foresee_edit(desk: VerbDesk, form: EditedLetter) -> Foreseen:
    with desk.inspecting() as inspection:
        inspection.require_owners(desk.pipeline)
        letter = inspection.letters(desk.pipeline).one(form.letter)
    _require_value(letter)
    matched = _match(desk, LetterFilter(ids=[form.letter]))
    lines = [f"processes dead letter {letter.id} of {letter.computation} with another value, once"]
    if not desk.redacts:
        lines += [f"key: {_json(letter.key)}", f"error: {letter.error}", f"value: {letter.value}"]
    lines += [
        *matched.of_a_retry(),
        "A value of another key is refused. The log keeps the former value.",
    ]
    suggested = {} if desk.redacts else {"value": _readable(letter.value)}
    if form.value is not None:
        typed_json(form.value, "value")
    return Foreseen(lines, matched.askable > 0, suggested)


def _require_value(letter: DeadLetterEntry) -> None:
    """`UsageError` if the letter has no value that an operator may change."""
    if letter.key is None:
        raise UsageError(
            f"dead letter {letter.id} is a row of a source that could not be read: no key owns it. "
            "Correct the row, send it again, and discard the letter"
        )
    if letter.stream == "timer":
        raise UsageError(f"dead letter {letter.id} is a timer, which has no value: retry it")
    if letter.parked == "waiting":
        raise UsageError(
            f"dead letter {letter.id} only waits in a parked key: edit the letter that stops the "
            "key, and this one follows"
        )


def _readable(value: str) -> str:
    try:
        return msgspec.json.format(value)
    except msgspec.DecodeError:
        return value


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _edit(desk: VerbDesk, actor: Actor, form: EditedLetter) -> Asked:
    if form.value is None:
        raise UsageError("give the record another value, as JSON")
    value = typed_json(form.value, "value")
    with desk.inspecting() as inspection:
        _require_value(inspection.letters(desk.pipeline).one(form.letter))
    with desk.asking_owners() as asking:
        batch, count = asking.edit(actor, form.letter, value)
        if not count:
            raise UsageError(_nothing_of(asking.match(LetterFilter(ids=[form.letter]))))
    return _in_log(batch)


EDIT = Verb(
    "edit",
    "Edit and retry a dead letter",
    EditedLetter,
    _foresee_edit,
    _edit,
    {
        "letter": FormField("number of the dead letter", "number"),
        "value": FormField("new value", "lines", "JSON, as the stream's type wants it"),
    },
)


# -- discard


class DiscardedLetters(WhichLetters, frozen=True, kw_only=True):
    waiting: bool = False
    up_to: int | None = None
    """Newest letter that may go; None: the newest that there is."""


def _discarded(form: DiscardedLetters) -> LetterFilter:
    wanted = _required(form, "discard")
    return wanted._replace(waiting=form.waiting, up_to=form.up_to)


def _require_found(desk: VerbDesk, wanted: LetterFilter, matched: MatchedLetters) -> None:
    missing = wanted.missing(matched.ids)
    if missing:
        raise UsageError(
            f"pipeline {desk.pipeline!r} has no dead letter {', '.join(map(str, missing))}. To "
            "discard records that only wait in parked keys, check that field"
        )


def _foresee_discard(desk: VerbDesk, form: DiscardedLetters) -> Foreseen:
    wanted = _discarded(form)
    with desk.asking() as asking:
        matched = asking.match(wanted)
        of_owners = len(asking.letters_of_owners(matched.ids))
    _require_found(desk, wanted, matched)
    going = len(matched.ids) - matched.retried
    suggested = {} if not matched.ids else {"up_to": str(matched.ids[-1])}
    lines = list(_of_a_discard(matched, going, of_owners))
    return Foreseen(lines, going > 0, suggested, _copies(form))


def _of_a_discard(matched: MatchedLetters, going: int, of_owners: int) -> Iterator[str]:
    yield matched.number()
    if going:
        yield f"deletes {count_of(going, 'dead letter')} for good"
    if matched.retried:
        yield f"being retried: {matched.retried:,} of them, which stay"
    if of_owners:
        yield (
            f"of parked keys, or with a retry that was withdrawn and may have begun: {of_owners:,} "
            "of them. The owners of the keys are asked to delete them: a retry that has begun is "
            "done all the same, and after a letter of a parked key the next records have their turn"
        )


def _copies(form: DiscardedLetters) -> tuple[Further, ...]:
    """The download of the letters, which has no filter by numbers."""
    filters = {"step": form.step, "key": form.key, "error": form.error}
    if form.waiting:
        filters["waiting"] = "true"
    what = "Keep a copy first: download "
    what += "the letters" if form.ids is None else "all letters of these filters, whatever numbers"
    return (Further(what, "letters.jsonl", filters),)


def _discard(desk: VerbDesk, actor: Actor, form: DiscardedLetters) -> Asked:
    wanted = _discarded(form)
    with desk.inspecting() as inspection:
        inspection.require_current(desk.pipeline)
    with desk.asking() as asking:
        matched = asking.match(wanted)
        _require_found(desk, wanted, matched)
        gone = asking.discard(actor, matched.ids)
        batch, count = asking.discard_by_owners(actor, matched.ids)
        if not gone and not count:
            stay = f"; {matched.retried:,} are being retried, and stay" if matched.retried else ""
            raise UsageError(f"nothing was discarded: {matched.number()}{stay}")
    return _in_log(batch) if count else Asked(None)


DISCARD = Verb(
    "discard",
    "Discard dead letters",
    DiscardedLetters,
    _foresee_discard,
    _discard,
    {
        **WHICH,
        "waiting": FormField("also records that only wait in parked keys", "check"),
        "up_to": FormField(
            "newest number",
            "number",
            "letters that come later stay; clear it and look again to include them",
        ),
    },
    is_final=True,
)


# -- set aside


class SetAsideItem(msgspec.Struct, frozen=True):
    step: str
    item: str
    key: str | None = None
    partition: str | None = None


def _require_item(form: SetAsideItem) -> None:
    if form.key is None and not NUMBER.fullmatch(form.item):
        raise UsageError(
            f"{shown(form.item)} is no number of a row. For a record or timer of a computation "
            "fill in its key as well"
        )
    if form.key is not None and not ITEM.fullmatch(form.item):
        raise UsageError(
            f"{form.item!r} names no record or timer; take it from the worker's error: record:…"
        )


def _foresee_aside(desk: VerbDesk, form: SetAsideItem) -> Foreseen:
    _require_item(form)
    with desk.inspecting() as inspection:
        inspection.require_current(desk.pipeline)
        kinds = {
            name: one.kind
            for one in inspection.placed(desk.pipeline).computations
            for name in (one.name, one.label)
        }
    wanted = "injector" if form.key is None else "computation"
    if kinds.get(form.step) != wanted:
        names = ", ".join(name for name, kind in kinds.items() if kind == wanted)
        raise UsageError(f"there is no {wanted} {form.step!r}; there are: {names}")
    return Foreseen(
        [
            f"{form.item} of {form.step} becomes a dead letter when a worker that starts from now "
            "on meets it, unless it is processed already",
            "the pipeline goes on without it; you can retry it later, or withdraw this request in "
            "the log",
        ]
    )


def _set_aside(desk: VerbDesk, actor: Actor, form: SetAsideItem) -> Asked:
    _require_item(form)
    with desk.inspecting() as inspection:
        inspection.require_current(desk.pipeline)
    with desk.asking() as asking:
        if form.key is None:
            batch = asking.set_aside(actor, form.step, form.partition, int(form.item))
        else:
            batch = asking.set_aside_item(actor, form.step, key_of(form.key), form.item)
    return _in_log(batch)


SET_ASIDE = Verb(
    "set_aside",
    "Set a record aside",
    SetAsideItem,
    _foresee_aside,
    _set_aside,
    {
        "step": FormField("step", hint="as the error of the worker names it"),
        "item": FormField(
            "record, timer or row", hint="as the error names it: record:…, timer:…, or a row number"
        ),
        "key": FormField("key", hint="of a record or timer: its key as JSON"),
        "partition": FormField("partition", hint="of a row; empty: the only one of the injector"),
    },
)


# -- withdraw


class WithdrawnBatch(msgspec.Struct, frozen=True):
    batch: int


def _foresee_withdrawal(desk: VerbDesk, form: WithdrawnBatch) -> Foreseen:
    with desk.inspecting() as inspection:
        found = inspection.log(desk.pipeline).outcomes(form.batch)
    if not found.open:
        return Foreseen([f"batch {form.batch} has no open request: nothing would change"], False)
    rest = sum(found.counts.values()) - found.open
    return Foreseen(
        [
            f"takes back {count_of(found.open, 'request')} of batch {form.batch}; "
            f"{rest:,} are settled already and stay so",
            "one that an owner has begun is done all the same, and the log says so",
        ]
    )


def _withdraw(desk: VerbDesk, actor: Actor, form: WithdrawnBatch) -> Asked:
    with desk.asking() as asking:
        if not asking.withdraw(actor, form.batch):
            raise UsageError(f"batch {form.batch} has no open request any more")
    return _in_log(form.batch)


WITHDRAW = Verb(
    "withdraw",
    "Withdraw requests",
    WithdrawnBatch,
    _foresee_withdrawal,
    _withdraw,
    {"batch": FormField("batch", "number", "as the log numbers it")},
)
