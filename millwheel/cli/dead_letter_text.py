"""Dead letters as text."""

from __future__ import annotations

import typer

from millwheel.cli.fitted_tables import Fit, Styled, print_table
from millwheel.cli.printing import say, seconds_text, tell
from millwheel.core.quantities import count_of
from millwheel.store.console.asking import MatchedLetters
from millwheel.store.console.inspection import DeadLetterEntry, DeadLetterKind


def print_letters(found: list[DeadLetterEntry]) -> None:
    print_table(
        ["id", "given up at", "computation", "stream", "key", "parked", "place", "error", "value"],
        [
            [
                str(entry.id),
                seconds_text(entry.given_up_at),
                entry.computation,
                entry.stream,
                "" if entry.key is None else str(entry.key),
                Styled(entry.parked or "", "warning"),
                entry.place,
                entry.error,
                entry.value,
            ]
            for entry in found
        ],
        Fit(("parked", "place", "stream", "given up at", "value", "key")),
    )


def print_kinds(kinds: list[DeadLetterKind]) -> None:
    print_table(
        ["letters", "keys", "computation", "error", "oldest", "newest at"],
        [
            [
                f"{k.letters:,}",
                f"{k.keys:,}",
                k.computation,
                k.error,
                str(k.oldest),
                seconds_text(k.newest_at),
            ]
            for k in kinds
        ],
        Fit(("newest at", "oldest", "keys")),
    )


def letter_fields(entry: DeadLetterEntry) -> dict[str, object]:
    """All fields but the traceback."""
    names = [name for name in entry.__struct_fields__ if name != "traceback"]
    return {name: getattr(entry, name) for name in names}


def print_letter(entry: DeadLetterEntry) -> None:
    for name, value in letter_fields(entry).items():
        say(f"{name.replace('_', ' '):12}  {'' if value is None else value}")
    if entry.traceback:
        typer.echo()
        say(entry.traceback.rstrip())


def print_matched(matched: MatchedLetters, *, err: bool) -> None:
    """Print how many letters match, and how many of them are late or stay."""
    print_number(matched, err=err)
    if matched.without_key:
        tell(
            f"rows of a source that could not be read: {matched.without_key:,} of them; no key "
            "owns them. Mend the rows, and send them again",
            err=err,
        )
    if matched.removed:
        tell(
            f"of computations that were removed: {matched.removed:,} of them; no code processes "
            "them. Export them, or discard them",
            err=err,
        )
    if matched.retried:
        tell(f"being retried already: {matched.retried:,} of them", err=err)
    if matched.waiting:
        one = matched.waiting == 1
        tell(
            f"{count_of(matched.waiting, 'record')} wait{'s' if one else ''} behind them in parked "
            f"keys, and follow{'s' if one else ''} by {'itself' if one else 'themselves'}",
            err=err,
        )
    for computation, count in sorted(matched.behind.items()):
        tell(
            f"behind the low watermark of {computation}: {count:,} of them; the records that they "
            "produce are late, and a reader that drops late records will drop them",
            err=err,
        )


def print_number(matched: MatchedLetters, *, err: bool) -> None:
    number = len(matched.ids)
    tell(f"{count_of(number, 'dead letter')} match{'es' if number == 1 else ''}", err=err)
