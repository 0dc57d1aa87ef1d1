"""``millwheel state`` and ``millwheel timers``: one key, as the store has it, and changes that its owner makes."""

from __future__ import annotations

from typing import Any

import msgspec
import typer

from millwheel.cli.asking import actor, asking, json_of, report
from millwheel.cli.output import print_json, print_table
from millwheel.codec import is_key
from millwheel.errors import UsageError
from millwheel.model import Key
from millwheel.services.operating import short
from millwheel.store.address import StoreAddress
from millwheel.store.inspection import inspect
from millwheel.store.one_key import MOST_PENDING, KeyStatus
from millwheel.store.presence import present

MOST_ROWS = 100
"""Most entries, and most timers, that are printed without --json."""


def get(
    computation: str, key: str, store: str | None, pipeline: str | None, *, as_json: bool
) -> None:
    """Print all that the store has of one key."""
    wanted = key_of(key)
    with present(StoreAddress.parse(store)) as presence, inspect(presence.url) as inspection:
        found = inspection.key(inspection.choose(pipeline), computation, wanted)
    if as_json:
        print_json(found)
    else:
        _print(found)


def set_state(
    computation: str,
    key: str,
    store: str | None,
    pipeline: str | None,
    *,
    merge: str | None,
    value: str | None,
    condition: str | None,
    reason: str,
    wait: float,
) -> None:
    """Ask the owner of a key to change its state."""
    if (merge is None) == (value is None):
        raise UsageError("give --merge with the fields to change, or --value with the whole state")
    payload: dict[str, Any] = {}
    if merge is not None:
        payload["merge"] = json_of(merge, "--merge")
    if value is not None:
        payload["value"] = json_of(value, "--value")
    if condition is not None:
        payload["if"] = json_of(condition, "--if")
    _ask("set_state", computation, key, store, pipeline, payload, reason, wait)


def delete_state(
    computation: str,
    key: str,
    store: str | None,
    pipeline: str | None,
    *,
    condition: str | None,
    reason: str,
    wait: float,
) -> None:
    """Ask the owner of a key to empty its state."""
    payload = {} if condition is None else {"if": json_of(condition, "--if")}
    _ask("delete_state", computation, key, store, pipeline, payload, reason, wait)


def change_timer(
    verb: str,
    computation: str,
    key: str,
    store: str | None,
    pipeline: str | None,
    *,
    tag: str,
    kind: str,
    reason: str,
    wait: float,
) -> None:
    """Ask the owner of a key to cancel one of its timers, or to let it fire."""
    payload = {"tag": tag, "kind": kind}
    _ask(verb, computation, key, store, pipeline, payload, reason, wait)


def _ask(
    verb: str,
    computation: str,
    key: str,
    store: str | None,
    pipeline: str | None,
    payload: dict[str, Any],
    reason: str,
    wait: float,
) -> None:
    with asking(store, pipeline) as desk:
        with desk.transaction() as asked:
            batch = asked.ask(actor(reason), verb, computation, key_of(key), payload)
        report(desk, batch, desk.wait(batch, 1, wait))


def key_of(text: str) -> Key:
    """The key that a word of a command line stands for: JSON, or else the text itself.

    Raises:
        UsageError: it is JSON that cannot be a key.
    """
    try:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
    key = tuple(found) if isinstance(found, list) else found
    if not is_key(key):
        raise UsageError(
            f"{text} cannot be a key: a key is a text, a whole number, or a list of these. A text that looks like "
            f"other JSON is written in quotes: '\"{text}\"'"
        )
    return key


def _print(found: KeyStatus) -> None:
    owner = "no worker" if found.owner is None else f"worker {short(found.owner)}"
    typer.echo(
        f"{found.computation}, key {msgspec.json.encode(found.key).decode()}: slot {found.slot}, interval "
        f"{found.interval} of {owner}"
    )
    if found.state is None and not found.entries:
        typer.echo(f"no state{_other_type(found.key)}")
    if found.state is not None:
        typer.echo(f"state (version {found.version}): {bytes(found.state).decode()}")
    if found.entries:
        typer.echo()
        _print_some(
            ["entry", "value"],
            [[entry, bytes(value).decode()] for entry, value in found.entries.items()],
        )
    typer.echo()
    if found.timers:
        _print_some(
            ["timer", "tag", "due", "holds the watermark at", "set at"],
            [[t.kind, t.tag, t.due, t.hold, t.set_at] for t in found.timers],
        )
    else:
        typer.echo("no timers")
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
            typer.echo(f"the oldest {MOST_PENDING} records; there may be more")
    else:
        typer.echo("no records on their way to it")


def _print_some(columns: list[str], rows: list[list[str]]) -> None:
    """Print the first rows of a table, and how many more there are."""
    print_table(columns, rows[:MOST_ROWS])
    if len(rows) > MOST_ROWS:
        typer.echo(f"and {len(rows) - MOST_ROWS:,} more: --json has all")


def _other_type(key: Key) -> str:
    """A hint for a key that may have been meant as text."""
    return f"; the text {key} is another key: '\"{key}\"'" if isinstance(key, int) else ""
