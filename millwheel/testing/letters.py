"""Dead letters as a failed test shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millwheel.runtime.interval.routing import Step
from millwheel.store.port import DeadLetter

MOST_SHOWN = 3
"""Letters shown with their tracebacks."""


def in_words(letters: Sequence[DeadLetter], steps: Mapping[int, Step]) -> str:
    """How many letters there are, and the first of them with their tracebacks."""
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
