"""``millwheel dead-letters``: list, show, retry, export and discard."""

from __future__ import annotations

from datetime import datetime

import msgspec

from millwheel.cli.asking import actor, asking, json_of, key_of, report
from millwheel.cli.output import confirm, count_of, cut, print_json, print_table, say
from millwheel.core.codec import encode_key
from millwheel.errors import UsageError
from millwheel.store.address import StoreAddress
from millwheel.store.console.asking import LetterFilter, MatchedLetters
from millwheel.store.console.inspection import DeadLetterEntry, inspect
from millwheel.store.console.presence import present


def selected(
    ids: list[int],
    computation: str | None,
    stream: str | None,
    key: str | None,
    error: str | None,
    since: datetime | None,
    *,
    waiting: bool = False,
) -> LetterFilter:
    """The filter that the options of a command stand for."""
    text = None if key is None else encode_key(key_of(key))[0].decode()
    return LetterFilter(ids or None, computation, stream, text, error, since, waiting)


def list_letters(
    letters: LetterFilter,
    store: str | None,
    pipeline: str | None,
    limit: int,
    *,
    by_error: bool,
    as_json: bool,
) -> None:
    """Print the newest dead letters, or how many there are of each error."""
    with present(StoreAddress.parse(store)) as presence, inspect(presence.url) as inspection:
        name = inspection.choose(pipeline)
        if by_error:
            kinds = inspection.dead_letter_kinds(name, letters)
        else:
            found = inspection.dead_letters(name, limit, letters)
    if by_error and as_json:
        print_json(kinds)
    elif by_error:
        print_table(
            ["letters", "keys", "computation", "error", "oldest", "newest at"],
            [
                [
                    f"{k.letters:,}",
                    f"{k.keys:,}",
                    k.computation,
                    k.error,
                    str(k.oldest),
                    k.newest_at,
                ]
                for k in kinds
            ],
        )
    elif as_json:
        print_json([_letter(entry) for entry in found])
    else:
        _print_list(found)


def _print_list(found: list[DeadLetterEntry]) -> None:
    print_table(
        ["id", "given up at", "computation", "stream", "key", "parked", "place", "error", "value"],
        [
            [
                str(entry.id),
                entry.given_up_at,
                entry.computation,
                entry.stream,
                "" if entry.key is None else cut(str(entry.key)),
                entry.parked or "",
                entry.place,
                *(cut(text) for text in (entry.error, entry.value)),
            ]
            for entry in found
        ],
    )


def _letter(entry: DeadLetterEntry) -> dict[str, object]:
    names = [name for name in entry.__struct_fields__ if name != "traceback"]
    return {name: getattr(entry, name) for name in names}


def show(number: int, store: str | None, pipeline: str | None, *, as_json: bool) -> None:
    """Print one dead letter with its traceback."""
    with present(StoreAddress.parse(store)) as presence, inspect(presence.url) as inspection:
        entry = inspection.dead_letter(inspection.choose(pipeline), number)
    if as_json:
        print_json(entry)
        return
    for name, value in _letter(entry).items():
        say(f"{name.replace('_', ' '):12}  {'' if value is None else value}")
    if entry.traceback:
        say("")
        say(entry.traceback.rstrip())


def export(letters: LetterFilter, store: str | None, pipeline: str | None) -> None:
    """Print dead letters as JSON Lines, the oldest first."""
    with present(StoreAddress.parse(store)) as presence, inspect(presence.url) as inspection:
        found = inspection.dead_letters(inspection.choose(pipeline), None, letters)
    for entry in reversed(found):
        say(msgspec.json.encode(_letter(entry)).decode())


def retry(
    letters: LetterFilter,
    store: str | None,
    pipeline: str | None,
    *,
    edit: str | None,
    rate: float | None,
    reason: str,
    wait: float,
    dry_run: bool,
    all_of_them: bool,
) -> None:
    """Ask the owners of the keys to process dead letters again."""
    _require_filter(letters, all_of_them=all_of_them, verb="retry")
    payload = None if edit is None else {"value": json_of(edit, "--edit")}
    with asking(store, pipeline) as desk:
        with desk.transaction() as asked:
            matched = asked.match(letters)
            _tell(matched)
            if payload is not None and len(matched.ids) != 1:
                raise UsageError(
                    f"--edit gives one record another value, and {len(matched.ids):,} dead letters "
                    "match"
                )
            if dry_run or not matched.ids:
                return
            batch, count = asked.retry(actor(reason), matched.ids, rate=rate, payload=payload)
        if not count:
            say("there is nothing to ask for")
            return
        say(f"asked for {count:,} as batch {batch}")
        report(desk, batch, desk.wait(batch, count, wait))


def _tell(matched: MatchedLetters) -> None:
    """Say which letters match, and which of them will be late or cannot be retried."""
    _tell_how_many(matched)
    if matched.without_key:
        say(
            f"rows of a source that could not be read: {matched.without_key:,} of them; no key "
            "owns them. Mend the rows, and send them again"
        )
    if matched.removed:
        say(
            f"of computations that were removed: {matched.removed:,} of them; no code processes "
            "them. Export them, or discard them"
        )
    if matched.retried:
        say(f"being retried already: {matched.retried:,} of them")
    if matched.waiting:
        one = matched.waiting == 1
        say(
            f"{count_of(matched.waiting, 'record')} wait{'s' if one else ''} behind them in parked "
            f"keys, and follow{'s' if one else ''} by {'itself' if one else 'themselves'}"
        )
    for computation, count in sorted(matched.behind.items()):
        say(
            f"behind the low watermark of {computation}: {count:,} of them; the records that they "
            "produce are late, and a reader that drops late records will drop them"
        )


def _tell_how_many(matched: MatchedLetters) -> None:
    number = len(matched.ids)
    say(f"{count_of(number, 'dead letter')} match{'es' if number == 1 else ''}")


def discard(
    letters: LetterFilter,
    store: str | None,
    pipeline: str | None,
    *,
    reason: str,
    wait: float,
    dry_run: bool,
    sure: bool,
    all_of_them: bool,
) -> None:
    """Delete dead letters that match a filter, or all of them, after confirmation unless `sure`;
    the owners of parked keys are asked to."""
    _require_filter(letters, all_of_them=all_of_them, verb="discard")
    with asking(store, pipeline, needs_owners=False) as desk:
        with desk.transaction() as asked:
            matched = asked.match(letters)
            missing = sorted({*(letters.ids or [])} - {*matched.ids})
            if missing:
                raise UsageError(
                    f"pipeline {desk.pipeline!r} has no dead letter "
                    f"{', '.join(map(str, missing))}; nothing was discarded. For records that "
                    "only wait in parked keys, add --waiting"
                )
        if dry_run or not matched.ids:
            _tell_how_many(matched)
            return
        what = f"{count_of(len(matched.ids), 'dead letter')} of {desk.pipeline}"
        confirm(
            f"discarding {what} cannot be undone (millwheel dead-letters export keeps a copy)",
            f"Discard {what}? This cannot be undone",
            sure=sure,
        )
        with desk.transaction() as asked:
            gone = asked.discard(actor(reason), matched.ids)
            batch, count = asked.discard_parked(actor(reason), matched.ids)
        left = len(matched.ids) - len(gone) - count
        say(
            f"discarded {count_of(len(gone), 'dead letter')} of {desk.pipeline}"
            + (f"; {left:,} are being retried, and stay" if left else "")
        )
        if count:
            say(f"asked the owners of parked keys to discard {count:,} as batch {batch}")
            report(desk, batch, desk.wait(batch, count, wait))


def _require_filter(letters: LetterFilter, *, all_of_them: bool, verb: str) -> None:
    if all_of_them == letters.selects:
        raise UsageError(
            f"say which dead letters to {verb}: ids, or filters such as --computation and --error, "
            "or --all (and not both)"
        )
