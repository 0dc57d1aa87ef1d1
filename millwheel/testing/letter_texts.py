"""Format dead letters for the message of a failed test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millwheel.runtime.interval.step import Step
from millwheel.store.port.requests import DeadLetter

MOST_SHOWN = 3


def format_dead_letters(letters: Sequence[DeadLetter], steps: Mapping[int, Step]) -> str:
    """Their number, and the first of them with their tracebacks."""
    count = len(letters)
    lines = ["1 unexpected dead letter" if count == 1 else f"{count:,} unexpected dead letters"]
    for letter in letters[:MOST_SHOWN]:
        key = "" if letter.key is None else f", key {letter.key.decode()}"
        lines.append(
            f"{steps[letter.computation].name!r} gave up on stream {letter.stream!r}{key}, "
            f"{letter.place}: {letter.error}, value {letter.value:.300}"
        )
        if letter.traceback:
            lines.append(letter.traceback.rstrip())
    if count > MOST_SHOWN:
        lines.append(f"and {count - MOST_SHOWN:,} more")
    return "\n".join(lines)
