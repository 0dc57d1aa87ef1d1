"""A key as text."""

from __future__ import annotations

import msgspec
import typer

from millwheel.cli.fitted_tables import print_table
from millwheel.cli.printing import say, tell
from millwheel.core.model import Key
from millwheel.core.quantities import count_of
from millwheel.services.operating import short
from millwheel.store.console.one_key import (
    MOST_COUNTED,
    MOST_PENDING,
    KeyPart,
    KeyStatus,
    StoppedKey,
)


def print_key(found: KeyStatus, part: KeyPart) -> None:
    owner = "no worker" if found.owner is None else f"worker {short(found.owner)}"
    tell(
        f"{found.computation}, key {msgspec.json.encode(found.key).decode()}: slot {found.slot}, "
        f"interval {found.interval} of {owner}"
    )
    if found.parked is not None:
        tell(_parked(found.parked))
    if found.state is None and found.entries_total == 0 and not part.skip:
        tell(f"no state{_other_type(found.key)}")
    if found.state is not None:
        say(f"state (version {found.version}): {bytes(found.state).decode()}")
    if found.entries:
        typer.echo()
        _print_some(
            ["entry", "value"],
            [[entry, bytes(value).decode()] for entry, value in found.entries.items()],
            found.entries_total,
        )
    typer.echo()
    if found.timers_total:
        _print_some(
            ["timer", "tag", "due", "holds the watermark at", "set at"],
            [[t.kind, t.tag, t.due, t.hold, t.set_at] for t in found.timers],
            found.timers_total,
        )
    else:
        tell("no further timers" if part.skip else "no timers")
    if found.pending:
        typer.echo()
        print_table(
            ["sent by", "stream", "id", "timestamp", "sent at", "value"],
            [
                [r.sender, r.stream, r.id, r.timestamp, r.produced_at, bytes(r.value).decode()]
                for r in found.pending
            ],
        )
        if len(found.pending) == MOST_PENDING:
            tell(f"the oldest {MOST_PENDING} records; there may be more")
    else:
        tell("no records on their way to it")


def _parked(parked: StoppedKey) -> str:
    waiting = count_of(parked.waiting, "record")
    if parked.letter is None:
        return f"parked since {parked.since}; being processed: {waiting}"
    return (
        f"parked since {parked.since} by dead letter {parked.letter} ({parked.error}); behind it: "
        f"{waiting}"
    )


def _print_some(columns: list[str], rows: list[list[str]], total: int | None) -> None:
    print_table(columns, rows)
    if total is None:
        tell(f"{len(rows):,} of more than {MOST_COUNTED:,}: --limit and --skip show others")
    elif len(rows) < total:
        tell(f"{len(rows):,} of {total:,}: --limit and --skip show others")


def _other_type(key: Key) -> str:
    """A hint for a key that may have been meant as text."""
    return f"; the text {key} is another key: '\"{key}\"'" if isinstance(key, int) else ""
