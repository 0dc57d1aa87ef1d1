"""Requests of a command line to the owners of keys: the actor, and how it waits for the outcome."""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
import sys
import time
from collections.abc import Iterator

import msgspec
import typer

from millwheel.cli.output import cut, print_json, print_table, say
from millwheel.core.codec import is_key, shown
from millwheel.core.model import Key
from millwheel.errors import NotCarriedOut, UsageError
from millwheel.store.address import StoreAddress
from millwheel.store.console.administration import transaction
from millwheel.store.console.asking import Actor, Asking, LogEntry, Outcomes
from millwheel.store.console.inspection import inspect
from millwheel.store.console.presence import present

POLL_SECONDS = 0.2


def actor(reason: str) -> Actor:
    """The user of this process: ``$MILLWHEEL_ACTOR``, or the name of the user and the machine."""
    named = os.environ.get("MILLWHEEL_ACTOR")
    if named:
        return Actor(named, reason)
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return Actor(f"{user}@{socket.gethostname()}", reason)


@contextlib.contextmanager
def asking(store: str | None, pipeline: str | None, *, needs_owners: bool = True) -> Iterator[Desk]:
    """A place to ask the owners of a pipeline's keys, or only to read and change what was asked."""
    with present(StoreAddress.parse(store)) as presence:
        with inspect(presence.url) as inspection:
            name = inspection.choose(pipeline)
            if needs_owners:
                inspection.require_owners(name)
            else:
                inspection.require_current(name)
        yield Desk(presence.url, name)


class Desk:
    """Asks, and waits; each call is a transaction of its own."""

    def __init__(self, url: str, pipeline: str) -> None:
        self._url = url
        self.pipeline = pipeline

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Asking]:
        """Requests in one transaction."""
        with transaction(self._url) as connection:
            yield Asking(connection, self.pipeline)

    def wait(self, batch: int, total: int, seconds: float) -> Outcomes:
        """Wait until the requests of a batch are settled, at most so long; shows how many are
        left."""
        deadline = time.monotonic() + seconds
        told = time.monotonic()
        while True:
            with self.transaction() as asked:
                found = asked.outcomes(batch)
            if not found.open or time.monotonic() >= deadline:
                return found
            if total > 1 and time.monotonic() - told >= 1.0:
                told = time.monotonic()
                say(f"  {total - found.open:,} of {total:,}", err=True)
            time.sleep(POLL_SECONDS)


def report(desk: Desk, batch: int, found: Outcomes) -> None:
    """Print the outcomes, and end with an error unless all requests were carried out.

    Raises:
        NotCarriedOut: some are open.
        Exit: with 1: some were refused, or have failed.
    """
    for outcome, count in sorted(found.counts.items()):
        detail = found.details.get(outcome)
        say(f"{outcome}: {count:,}" + (f" ({detail})" if detail else ""))
    if found.open:
        raise NotCarriedOut(
            f"{found.open:,} requests are not carried out yet; the owners of the keys go on with "
            f"them. See: millwheel log --pipeline {desk.pipeline}. Take them back with: millwheel "
            f"log --withdraw {batch} --pipeline {desk.pipeline}"
        )
    if set(found.counts) != {"done"}:
        raise typer.Exit(1)


def set_aside(
    name: str,
    item: str,
    store: str | None,
    pipeline: str | None,
    *,
    key: str | None,
    partition: str | None,
    reason: str,
) -> None:
    """Ask for a dead letter of a record of a computation, or of a row of an injector."""
    if key is None and not item.isdecimal():
        raise UsageError(
            f"{item!r} is no number of a row. For a record of a computation give --key as well"
        )
    with asking(store, pipeline, needs_owners=False) as desk, desk.transaction() as asked:
        if key is not None:
            batch = asked.set_aside_item(actor(reason), name, key_of(key), item)
        else:
            batch = asked.set_aside(actor(reason), name, partition, int(item))
        say(
            f"{item} of {name} will become a dead letter when a worker that starts from now on "
            "meets it, unless it is processed already. Take it back with: millwheel log "
            f"--withdraw {batch} --pipeline {desk.pipeline}"
        )


def log(
    store: str | None, pipeline: str | None, limit: int, withdraw: int | None, *, as_json: bool
) -> None:
    """Print the newest requests and operations, or take a batch of requests back."""
    with asking(store, pipeline, needs_owners=False) as desk, desk.transaction() as asked:
        if withdraw is not None:
            count = asked.withdraw(withdraw)
            if not count:
                raise UsageError(f"{desk.pipeline!r} has no open request in batch {withdraw}")
            say(
                f"took back {count:,} requests of batch {withdraw}; one that an owner had begun is "
                "done all the same, and the log says so"
            )
            return
        entries = asked.log(limit)
    if as_json:
        print_json(entries)
        return
    print_table(
        ["batch", "asked at", "by", "what", "on", "outcome", "reason"], [_row(e) for e in entries]
    )


def _row(entry: LogEntry) -> list[str]:
    key = "" if entry.key is None else f" {bytes(entry.key).decode()}"
    on = (entry.computation or "") + key
    what = entry.verb + ("" if entry.payload is None else f" {bytes(entry.payload).decode()}")
    return [
        str(entry.batch), entry.asked_at, entry.actor, cut(what), cut(on), _outcome(entry),
        entry.reason,
    ]  # fmt: skip


def _outcome(entry: LogEntry) -> str:
    if entry.requests == 1:
        word = "open" if entry.open else "done" if entry.done else "not done"
        return cut(word + (f": {entry.detail}" if entry.detail else ""))
    words = {"done": entry.done, "not done": entry.not_done, "open": entry.open}
    return ", ".join(f"{count:,} {word}" for word, count in words.items() if count)


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
            f"{text} cannot be a key: a key is a text, a whole number, or a list of these. A text "
            f"that looks like other JSON is written in quotes: '\"{text}\"'"
        )
    return key


def json_of(text: str, option: str) -> object:
    """The JSON value of an option; ``-`` reads standard input, ``@FILE`` a file.

    Raises:
        UsageError: it is no JSON.
    """
    if text == "-":
        text = sys.stdin.read()
    elif text.startswith("@"):
        try:
            with open(text[1:], encoding="utf-8") as file:
                text = file.read()
        except OSError as error:
            raise UsageError(f"{option}: {error}") from error
    try:
        value: object = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise UsageError(f"{option} takes JSON, and {shown(text)} is none: {error}") from error
    return value
