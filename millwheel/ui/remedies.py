"""Advice, in words, about the root that holds a low watermark.

Plain rules without a store: `millwheel.ui.pages.late_page` gives the facts.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from millwheel.core.quantities import count_of
from millwheel.store.console.held_watermarks import HolderRoot, RootKind

USUAL_SECONDS = 5.0
"""Records on their way hold a low watermark for less than this, as a rule."""

USUAL = (
    "It has held for a moment only, as each record on its way does: if the next look shows another "
    "one, there is nothing to do."
)

UNBLOCK = (
    "The worker continues when that code returns. Correct it at the line that is named: await an "
    "async client, or put the call into asyncio.to_thread."
)

END_THE_SESSION = (
    "If a process is named, end its transaction where it was begun, or end the process in psql "
    "with pg_terminate_backend. If none is, look at the server, its disk and the network."
)

INCIDENTS = {
    "commits-wait": "Commits wait",
    "loop-blocked": "The event loop is blocked",
    "poison-key": "A key is poison",
    "results-late": "Results are late",
    "slow-computation": "A computation is slow",
    "source-behind": "The source is behind",
    "worker-gone": "A worker is gone",
}
"""Titles of pages of docs/howto/incidents, by file."""


class Command(msgspec.Struct, frozen=True):
    command: str
    value: str = ""
    """Its arguments that hold a key or a tag, quoted for a shell."""


class Cure(msgspec.Struct, frozen=True):
    """A change that would help, with its form filled in."""

    verb: str
    label: str
    filters: dict[str, str]


class Obstacle(msgspec.Struct, frozen=True):
    """A reason for which a worker stands still; it comes first."""

    text: str
    detail: str
    """It may quote a key or a statement."""
    cure: str
    incident_file: str


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    advice: list[str]
    """Sentences."""
    first: list[Obstacle] = []
    commands: list[Command] = []
    cures: list[Cure] = []
    incident: str
    """Title of the page of the documentation."""
    incident_file: str
    """Its file in docs/howto/incidents, without its suffix."""


class LateFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the same look, besides the root."""

    pipeline: str
    labels: dict[str, str]
    age_seconds: float | None
    """How long the root has held."""
    has_worker: bool
    blocked_by: str | None = None
    """User code that blocks the loop of a worker."""
    waits: str | None = None
    """A commit or heartbeat that the store has not finished, and the sessions with its locks."""
    ended: bool = False
    """The source is read to its end."""
    rows_left: int | None = None
    """Rows that the root's injector has not read; None: not known."""


START_A_WORKER = Command("millwheel worker MODULE:PIPELINE")

Make = Callable[[HolderRoot, LateFacts], Remedy]


def remedy_for(root: HolderRoot, facts: LateFacts) -> Remedy:
    """The remedy of a root. A missing worker or a blocked one comes first."""
    if root.kind == "paused":
        return _paused(root, facts)
    if not facts.has_worker:
        return _remedy(
            "worker-gone",
            "No worker runs this pipeline, so nothing moves. Start one. If it ends again, the last "
            "lines of its log have the reason.",
            commands=[START_A_WORKER],
        )
    found = _MADE[root.kind](root, facts) if root.is_owned else _unowned(root, facts)
    first = _obstacles(facts)
    advice = found.advice
    is_usual = facts.age_seconds is not None and facts.age_seconds < USUAL_SECONDS
    if is_usual and root.kind in ("record", "row", "timer") and not first:
        advice = [USUAL, *advice]
    advice = [*(one.cure for one in first), *advice]
    found = msgspec.structs.replace(found, advice=advice, first=first)
    return _with_incident(found, first[0].incident_file) if first else found


def _with_incident(remedy: Remedy, file: str) -> Remedy:
    return msgspec.structs.replace(remedy, incident=INCIDENTS[file], incident_file=file)


def _obstacles(facts: LateFacts) -> list[Obstacle]:
    found: list[Obstacle] = []
    if facts.blocked_by is not None:
        text = f"User code blocks the event loop of a worker ({INCIDENTS['loop-blocked']}):"
        found.append(Obstacle(text, facts.blocked_by, UNBLOCK, "loop-blocked"))
    if facts.waits is not None:
        text = f"A worker waits for the store ({INCIDENTS['commits-wait']}):"
        found.append(Obstacle(text, facts.waits, END_THE_SESSION, "commits-wait"))
    return found


def _remedy(
    file: str,
    *advice: str,
    commands: list[Command] | None = None,
    cures: list[Cure] | None = None,
) -> Remedy:
    return Remedy(
        advice=list(advice),
        commands=commands or [],
        cures=cures or [],
        incident=INCIDENTS[file],
        incident_file=file,
    )


def _named(step: str, facts: LateFacts) -> str:
    return facts.labels.get(step, step)


def _key_words(root: HolderRoot, *more: str) -> str:
    return shlex.join([_json(root.key), *more])


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _unowned(root: HolderRoot, facts: LateFacts) -> Remedy:
    return _remedy(
        "worker-gone",
        f"The key's interval of {_named(root.step, facts)} has no live owner, so nothing happens "
        "to this key. A running worker takes it over when the lease of the last owner is over; if "
        "none does, start another worker.",
        commands=[
            Command(f"millwheel intervals list --pipeline {facts.pipeline}"),
            START_A_WORKER,
        ],
    )


def _timer(root: HolderRoot, facts: LateFacts) -> Remedy:
    if _obstacles(facts):  # a cancelled window has no result, and this one comes by itself
        return _remedy(
            "slow-computation",
            "The timer is due and has not fired. If its key belongs to that worker, it fires when "
            "the worker continues: do not cancel it.",
            commands=[_look_at(root, facts)],
        )
    of = {"step": root.step, "key": _json(root.key), "tag": root.tag, "kind": "watermark"}
    return _remedy(
        "slow-computation",
        f"The timer is due and has not fired: user code of {_named(root.step, facts)} works on "
        "this key, or on others before it. Look at the key, and at the workers.",
        "If the timer itself is wrong, cancel it: then its window or its reminder never comes.",
        commands=[_look_at(root, facts), _timers_command("cancel", root, facts)],
        cures=[Cure("cancel_timer", "Cancel this timer", of)],
    )


def _hold(root: HolderRoot, facts: LateFacts) -> Remedy:
    named = f" with the tag {_json(root.tag)}" if root.tag else ""
    return _remedy(
        "results-late",
        f"User code of {_named(root.step, facts)} holds the watermark{named} by "
        "ctx.hold_watermark, and has not released it. Only that code can: look at the state of the "
        "key to see what it still waits for.",
        commands=[_look_at(root, facts)],
    )


def _record(root: HolderRoot, facts: LateFacts) -> Remedy:
    return _remedy(
        "slow-computation",
        f"The record waits until user code of {_named(root.step, facts)} has taken it. Its key may "
        "wait for a service, or the step has more to do than its workers can: look at the key, and "
        "at the step's waiting records.",
        "If the worker ends with an error at this record, that error names the command that sets "
        "it aside.",
        commands=[_look_at(root, facts)],
    )


def _parked(root: HolderRoot, facts: LateFacts) -> Remedy:
    letter = "" if root.letter is None else str(root.letter)
    return _remedy(
        "poison-key",
        f"A record of this key has failed, and the key stands still until dead letter {letter} is "
        "retried or discarded. Read its error. When the cause is mended, retry it: the records "
        "that wait in the key follow in order.",
        commands=[
            Command(f"millwheel dead-letters show {letter} --pipeline {facts.pipeline}"),
            Command(f"millwheel dead-letters retry {letter} --pipeline {facts.pipeline}"),
        ],
        cures=[Cure("retry", "Retry the letter", {"ids": letter})],
    )


def _row(root: HolderRoot, facts: LateFacts) -> Remedy:
    return _remedy(
        "slow-computation",
        f"Row {root.row} was read, and what it leads to is not stored yet. The steps that read "
        f"{_named(root.step, facts)} are slow, or a key of theirs stands still: look at the step "
        "with the most waiting records.",
        "If the worker ends with an error at this row, that error names the command that sets it "
        "aside.",
        commands=[Command(f"millwheel status {facts.pipeline}")],
    )


def _paused(root: HolderRoot, facts: LateFacts) -> Remedy:
    return _remedy(
        "results-late",
        f"{_named(root.step, facts)} is paused: it reads nothing, so event time stands still. "
        "Resume it; the log has the name of the operator, and the reason.",
        *([] if facts.has_worker else ["No worker runs this pipeline either: start one as well."]),
        commands=[
            Command(f"millwheel resume {facts.pipeline} {root.step}"),
            *([] if facts.has_worker else [START_A_WORKER]),
        ],
        cures=[Cure("resume", f"Resume {_named(root.step, facts)}", {"step": root.step})],
    )


def _transaction(root: HolderRoot, facts: LateFacts) -> Remedy:
    return _remedy(
        "results-late",
        "A transaction of the server is open, and may still send records with older times. Let it "
        "end, or end the process that is named above with pg_terminate_backend.",
    )


def _inbox(root: HolderRoot, facts: LateFacts) -> Remedy:
    return _remedy(
        "results-late",
        "Nothing to do: event time follows each look into the inbox.",
        commands=[Command(f"millwheel status {facts.pipeline} --watch")],
    )


def _source(root: HolderRoot, facts: LateFacts) -> Remedy:
    name = _named(root.step, facts)
    if facts.ended:
        return _remedy(
            "results-late",
            f"{name} has read its input to the end, and its workers wait for more. If none will "
            "come, start them without --keep-open: then event time ends, and all windows close.",
            commands=[START_A_WORKER],
        )
    if facts.rows_left:
        return _remedy(
            "source-behind",
            f"{count_of(facts.rows_left, 'row')} of {name} are not read yet: event time is where "
            "the reading is. If that does not catch up, start more workers, or find the step that "
            "waits for itself.",
            commands=[Command(f"millwheel status {facts.pipeline} --watch")],
        )
    return _remedy(
        "results-late",
        f"{name} has shown nothing newer. If its input is quiet, there is no fault: the last "
        "window closes with the next row. If one partition of several is silent, idle_after= lets "
        "event time pass it.",
        commands=[Command(f"millwheel status {facts.pipeline}")],
    )


def _look_at(root: HolderRoot, facts: LateFacts) -> Command:
    return Command(f"millwheel state get --pipeline {facts.pipeline} {root.step}", _key_words(root))


def _timers_command(verb: Literal["cancel", "fire"], root: HolderRoot, facts: LateFacts) -> Command:
    tag = [root.tag] if root.tag else []
    return Command(
        f"millwheel timers {verb} --pipeline {facts.pipeline} {root.step}", _key_words(root, *tag)
    )


_MADE: dict[RootKind, Make] = {
    "timer": _timer,
    "hold": _hold,
    "record": _record,
    "parked": _parked,
    "row": _row,
    "paused": _paused,
    "transaction": _transaction,
    "inbox": _inbox,
    "source": _source,
}
