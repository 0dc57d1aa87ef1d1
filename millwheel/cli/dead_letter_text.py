"""Dead letters as text."""

from __future__ import annotations

import typer

from millwheel.cli.fitted_tables import Fit, Styled, print_table
from millwheel.cli.printing import say, seconds_text, tell
from millwheel.store.console.asking import MatchedLetters
from millwheel.store.console.kept_letters import DeadLetterEntry, DeadLetterKind


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


def print_letter(entry: DeadLetterEntry) -> None:
    for name, value in entry.listed().items():
        say(f"{name.replace('_', ' '):12}  {'' if value is None else value}")
    if entry.traceback:
        typer.echo()
        say(entry.traceback.rstrip())


def print_matched(matched: MatchedLetters, *, err: bool) -> None:
    """Print how many letters match, and how many of them are late or stay."""
    print_number(matched, err=err)
    for line in matched.of_a_retry():
        tell(line, err=err)


def print_number(matched: MatchedLetters, *, err: bool) -> None:
    tell(matched.number(), err=err)
