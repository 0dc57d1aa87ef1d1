"""Logs dead letters: one line for the first of each kind, then at most one per `REPEAT_SECONDS`.

A kind is a computation, the class of the error, and the line that raised it: a bug or a bad file
makes thousands of letters of one kind. Each line shows how many letters of its kind were left out
since the last line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from millwheel.core.clock import Clock
from millwheel.core.codec import decode_key
from millwheel.core.redaction import redacts, shown_key
from millwheel.runtime.interval.step import Step
from millwheel.store.port.requests import DeadLetter

REPEAT_SECONDS = 10.0
"""Least time between two lines of one kind."""

MOST_KINDS = 1_000
"""Most kinds remembered; further kinds of a computation count as one kind."""

MOST_CHARACTERS = 300
"""Most characters of a key or an error in a line."""

Kind = tuple[str, str, str]
"""Computation, class of the error, and the line that raised it."""


@dataclass
class _LastLine:
    """The last log line of a kind."""

    at: float
    """Monotonic time of the line."""
    left_out: int = 0
    """Letters left out since then."""


class DeadLetterLog:
    """Logs dead letters that are durable."""

    def __init__(self, log: Any, clock: Clock, steps: Mapping[int, Step]) -> None:
        self._log = log
        self._clock = clock
        self._steps = steps
        self._kinds: dict[Kind, _LastLine] = {}

    def add(self, letters: Iterable[DeadLetter]) -> None:
        now = self._clock.monotonic()
        for letter in letters:
            if letter.parked == "waiting":
                continue
            kind = self._kind_of(letter)
            last_line = self._kinds.get(kind)
            if last_line is not None and now - last_line.at < REPEAT_SECONDS:
                last_line.left_out += 1
                continue
            left_out = 0 if last_line is None else last_line.left_out
            self._kinds[kind] = _LastLine(now)
            self._log.warning(
                "dead_letter",
                computation=kind[0],
                stream=letter.stream,
                key=_key(letter.key),
                place=letter.place,
                parked=True if letter.parked else None,
                error=_short(_first_line(letter.error)),
                raised_at=kind[2] or None,
                left_out=left_out,
            )

    def flush(self, *, all_of_them: bool = False) -> None:
        """Log how many letters were left out: of kinds without a line for `REPEAT_SECONDS`, or
        all."""
        now = self._clock.monotonic()
        for (computation, error, place), last_line in self._kinds.items():
            if last_line.left_out and (all_of_them or now - last_line.at >= REPEAT_SECONDS):
                self._log.warning(
                    "dead_letters_left_out",
                    computation=computation,
                    error=error or None,
                    raised_at=place or None,
                    left_out=last_line.left_out,
                )
                last_line.at, last_line.left_out = now, 0

    def _kind_of(self, letter: DeadLetter) -> Kind:
        step = self._steps.get(letter.computation)
        name = str(letter.computation) if step is None else step.name
        kind = name, "", ""
        if letter.traceback:  # a row of a source has none, and its error begins with its place
            kind = name, letter.error.partition(":")[0], raised_at(letter.traceback)
        if kind not in self._kinds and len(self._kinds) >= MOST_KINDS:
            return name, "", ""
        return kind


def raised_at(traceback: str) -> str:
    """The innermost line of a traceback, as ``file:line in function``."""
    for line in reversed(traceback.splitlines()):
        if line.startswith('  File "') and line.count(", ") >= 2:
            file, number, function = line.rsplit(", ", 2)
            return f"{file[8:-1]}:{number.removeprefix('line ')} {function}"
    return ""


def _key(key_text: bytes | None) -> str | None:
    if key_text is None:
        return None
    return shown_key(decode_key(key_text)) if redacts() else _short(key_text.decode())


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _short(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"
