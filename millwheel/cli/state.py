"""``millwheel state`` and ``millwheel timers``: one key, as the store has it, and changes that its
owner makes."""

from __future__ import annotations

from typing import Any

import msgspec

from millwheel.cli.asking import actor, asking, json_of, key_of, report
from millwheel.cli.output import print_json, print_table, say
from millwheel.core.model import Key
from millwheel.errors import UsageError
from millwheel.services.operating import short
from millwheel.store.address import StoreAddress
from millwheel.store.console.inspection import inspect
from millwheel.store.console.one_key import FIRST_PAGE, MOST_PENDING, KeyStatus, Page
from millwheel.store.console.presence import present


def get(
    computation: str,
    key: str,
    store: str | None,
    pipeline: str | None,
    *,
    page: Page = FIRST_PAGE,
    as_json: bool,
) -> None:
    """Print the state of one key, a page of its entries and timers, and the records on their way to
    it."""
    wanted = key_of(key)
    with present(StoreAddress.parse(store)) as presence, inspect(presence.url) as inspection:
        found = inspection.key(inspection.choose(pipeline), computation, wanted, page)
    if as_json:
        print_json(found)
    else:
        _print(found, page)


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


def _print(found: KeyStatus, page: Page) -> None:
    owner = "no worker" if found.owner is None else f"worker {short(found.owner)}"
    say(
        f"{found.computation}, key {msgspec.json.encode(found.key).decode()}: slot {found.slot}, "
        f"interval {found.interval} of {owner}"
    )
    if found.state is None and not found.entries_total and not page.skip:
        say(f"no state{_other_type(found.key)}")
    if found.state is not None:
        say(f"state (version {found.version}): {bytes(found.state).decode()}")
    if found.entries:
        say("")
        _print_some(
            ["entry", "value"],
            [[entry, bytes(value).decode()] for entry, value in found.entries.items()],
            found.entries_total,
        )
    say("")
    if found.timers_total:
        _print_some(
            ["timer", "tag", "due", "holds the watermark at", "set at"],
            [[t.kind, t.tag, t.due, t.hold, t.set_at] for t in found.timers],
            found.timers_total,
        )
    else:
        say("no further timers" if page.skip else "no timers")
    if found.pending:
        say("")
        print_table(
            ["sent by", "stream", "id", "timestamp", "sent at", "value"],
            [
                [r.sender, r.stream, r.id, r.timestamp, r.produced_at, bytes(r.value).decode()]
                for r in found.pending
            ],
        )
        if len(found.pending) == MOST_PENDING:
            say(f"the oldest {MOST_PENDING} records; there may be more")
    else:
        say("no records on their way to it")


def _print_some(columns: list[str], rows: list[list[str]], total: int) -> None:
    """Print a page of a table, and how many rows there are in all."""
    print_table(columns, rows)
    if len(rows) < total:
        say(f"{len(rows):,} of {total:,}: --limit and --skip show others")


def _other_type(key: Key) -> str:
    """A hint for a key that may have been meant as text."""
    return f"; the text {key} is another key: '\"{key}\"'" if isinstance(key, int) else ""
