"""``millwheel dead-letters``: list, show, export, retry and discard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
import typer

from millwheel.cli.arguments import json_of
from millwheel.cli.command import command, group
from millwheel.cli.dead_letter_text import (
    print_kinds,
    print_letter,
    print_letters,
    print_matched,
    print_number,
)
from millwheel.cli.opened_store import inspecting
from millwheel.cli.operator_desk import Desk, actor, asking, report
from millwheel.cli.options import CommonOptions, Json, OnePipeline, OptionGroup, RequestOptions, Yes
from millwheel.cli.printing import confirm, print_json, say, tell
from millwheel.core.codec import encode_key
from millwheel.core.quantities import count_of
from millwheel.core.typed_values import key_of
from millwheel.errors import UsageError
from millwheel.store.console.asking import LetterFilter, MatchedLetters

LISTED = 100

app = typer.Typer()
letters_app = group(app, "dead-letters")

Waiting = Annotated[
    bool, typer.Option("--waiting", help="Also records that only wait in parked keys.")
]


@dataclass(frozen=True)
class LetterOptions(OptionGroup):
    ids: Annotated[list[int] | None, typer.Argument(metavar="ID...")] = None
    computation: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only those of a computation.")
    ] = None
    key: Annotated[str | None, typer.Option(help="Only those of a key; JSON, or a text.")] = None
    error: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only those with this in the error.")
    ] = None

    def filter(self, *, waiting: bool = False) -> LetterFilter:
        key = None if self.key is None else encode_key(key_of(self.key))[0].decode()
        return LetterFilter(self.ids or None, self.computation, key, self.error, waiting)


@dataclass(frozen=True)
class ChangedLetterOptions(LetterOptions):
    """A change needs a filter or ``--all``."""

    all_of_them: Annotated[bool, typer.Option("--all", help="All of the pipeline.")] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print how many match, and end.")] = (
        False
    )

    def required(self, verb: str, *, waiting: bool = False) -> LetterFilter:
        letters = self.filter(waiting=waiting)
        if self.all_of_them == letters.selects:
            raise UsageError(
                f"say which dead letters to {verb}: ids, or filters such as --computation and "
                "--error, or --all (and not both)"
            )
        return letters


@command(
    letters_app,
    "list",
    examples=[
        "millwheel dead-letters list",
        "millwheel dead-letters list --group-by error",
        "millwheel dead-letters list --computation count_searches --json",
    ],
)
def list_letters(
    letters: LetterOptions,
    group_by: Annotated[
        Literal["error"] | None, typer.Option(help="Count them instead, by computation and error.")
    ] = None,
    waiting: Waiting = False,
    pipeline: OnePipeline = None,
    as_json: Json = False,
    *,
    common: CommonOptions,
) -> None:
    """List the newest dead letters."""
    wanted = letters.filter(waiting=waiting)
    with inspecting(common) as inspection:
        name = inspection.choose(pipeline)
        if group_by is not None:
            kinds = inspection.letters(name).by_error(wanted).kinds
        else:
            found = inspection.letters(name).newest(LISTED, wanted)
    if group_by is not None:
        print_json(kinds) if as_json else print_kinds(kinds)
    elif as_json:
        print_json([entry.listed() for entry in found])
    else:
        print_letters(found)


@command(
    letters_app,
    "show",
    examples=[
        "millwheel dead-letters show 12",
    ],
)
def show_letter(
    number: Annotated[int, typer.Argument(metavar="ID")],
    pipeline: OnePipeline = None,
    as_json: Json = False,
    *,
    common: CommonOptions,
) -> None:
    """Show a dead letter with its traceback."""
    with inspecting(common) as inspection:
        entry = inspection.letters(inspection.choose(pipeline)).one(number)
    if as_json:
        print_json(entry)
    else:
        print_letter(entry)


@command(
    letters_app,
    "export",
    examples=[
        "millwheel dead-letters export > letters.jsonl",
    ],
)
def export_letters(
    letters: LetterOptions,
    waiting: Waiting = False,
    pipeline: OnePipeline = None,
    *,
    common: CommonOptions,
) -> None:
    """Print dead letters as JSON Lines, the oldest first."""
    wanted = letters.filter(waiting=waiting)
    with inspecting(common) as inspection:
        found = inspection.letters(inspection.choose(pipeline)).newest(None, wanted)
    for entry in reversed(found):
        say(msgspec.json.encode(entry.listed()).decode())


@command(
    letters_app,
    "retry",
    examples=[
        "millwheel dead-letters retry 12 13",
        "millwheel dead-letters retry --error KeyError --rate 100",
        'millwheel dead-letters retry 12 --edit \'{"query": "cats"}\'  # another value',
    ],
)
def retry_letters(
    letters: ChangedLetterOptions,
    edit: Annotated[
        str | None,
        typer.Option(
            metavar="JSON|-|@FILE",
            help="Give one record another value: JSON, standard input, or a file.",
        ),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(min=0.001, metavar="N", help="At most N a second.")
    ] = None,
    *,
    request: RequestOptions,
    common: CommonOptions,
) -> None:
    """Process dead letters again, each once and in its key's turn. Workers continue if this command
    ends."""
    wanted = letters.required("retry")
    value = None if edit is None else json_of(edit, "--edit")
    with asking(common, request.pipeline) as desk:
        with desk.transaction() as asked:
            matched = asked.match(wanted)
            print_matched(matched, err=request.as_json)
            if edit is not None and len(matched.ids) != 1:
                raise UsageError(
                    f"--edit gives one record another value, and {len(matched.ids):,} dead letters "
                    "match"
                )
            if letters.dry_run or not matched.ids:
                _print_none(desk, matched, request)
                return
            by = actor(request.reason)
            if edit is not None:
                batch, count = asked.edit(by, matched.ids[0], value)
            else:
                batch, count = asked.retry(by, matched.ids, rate=rate)
        if not count:
            tell("there is nothing to ask for", err=request.as_json)
            _print_none(desk, matched, request)
            return
        tell(f"asked for {count:,} as batch {batch}", err=request.as_json)
        found, given = desk.wait(batch, count, request.wait), {"matched": matched._asdict()}
        report(desk, batch, found, as_json=request.as_json, given=given)


def _print_none(desk: Desk, matched: MatchedLetters, request: RequestOptions) -> None:
    """Print a JSON document without outcomes, if it is wanted: nothing was asked for."""
    if request.as_json:
        given = {"pipeline": desk.pipeline, "matched": matched._asdict()}
        print_json({**given, "batch": None, "outcomes": {}})


@command(
    letters_app,
    "discard",
    examples=[
        "millwheel dead-letters discard 12",
        "millwheel dead-letters discard --all --dry-run  # how many there are",
    ],
)
def discard_letters(
    letters: ChangedLetterOptions,
    waiting: Waiting = False,
    yes: Yes = False,
    *,
    request: RequestOptions,
    common: CommonOptions,
) -> None:
    """Delete dead letters. This cannot be undone; export them first."""
    wanted = letters.required("discard", waiting=waiting)
    by = actor(request.reason)
    with asking(common, request.pipeline, needs_owners=False) as desk:
        with desk.transaction() as asked:
            matched = asked.match(wanted)
            missing = wanted.missing(matched.ids)
            if missing:
                raise UsageError(
                    f"pipeline {desk.pipeline!r} has no dead letter "
                    f"{', '.join(map(str, missing))}; nothing was discarded. For records that "
                    "only wait in parked keys, add --waiting"
                )
        if letters.dry_run or not matched.ids:
            print_number(matched, err=request.as_json)
            _print_none(desk, matched, request)
            return
        what = f"{count_of(len(matched.ids), 'dead letter')} of {desk.pipeline}"
        confirm(
            f"discarding {what} cannot be undone (millwheel dead-letters export keeps a copy)",
            f"Discard {what}? This cannot be undone",
            sure=yes,
        )
        with desk.transaction() as asked:
            gone = asked.discard(by, matched.ids)
            batch, count = asked.discard_by_owners(by, matched.ids)
        left = len(matched.ids) - len(gone) - count
        given = {"matched": matched._asdict(), "discarded": len(gone), "retried": left}
        tell(
            f"discarded {count_of(len(gone), 'dead letter')} of {desk.pipeline}"
            + (f"; {left:,} are being retried, and stay" if left else ""),
            err=request.as_json,
        )
        if count:
            tell(
                f"asked the owners of keys to discard {count:,} as batch {batch}",
                err=request.as_json,
            )
            found = desk.wait(batch, count, request.wait)
            report(desk, batch, found, as_json=request.as_json, given=given)
        elif request.as_json:
            print_json({"pipeline": desk.pipeline, **given, "batch": None, "outcomes": {}})
