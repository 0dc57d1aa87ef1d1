"""Requests to the owners of keys."""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import typer

from millwheel.cli.opened_store import opened
from millwheel.cli.options import CommonOptions
from millwheel.cli.printing import print_result, tell
from millwheel.errors import NotCarriedOut
from millwheel.store.console.administration import transaction
from millwheel.store.console.asking import Actor, Asking
from millwheel.store.console.inspection import inspect
from millwheel.store.console.request_log import Outcomes

POLL_SECONDS = 0.2

NOTHING: Mapping[str, Any] = MappingProxyType({})


def actor(reason: str) -> Actor:
    """``$MILLWHEEL_ACTOR``, or the user and the machine."""
    named = os.environ.get("MILLWHEEL_ACTOR")
    if named:
        return Actor(named, reason)
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return Actor(f"{user}@{socket.gethostname()}", reason)


@contextlib.contextmanager
def asking(
    common: CommonOptions, pipeline: str | None, *, needs_owners: bool = True
) -> Iterator[Desk]:
    """Open a store for requests, for which workers must run if it `needs_owners`."""
    with opened(common) as presence:
        with inspect(presence.url) as inspection:
            name = inspection.choose(pipeline)
            if needs_owners:
                inspection.require_owners(name)
            else:
                inspection.require_current(name)
        yield Desk(presence.url, name)


class Desk:
    """Each call is a transaction."""

    def __init__(self, url: str, pipeline: str) -> None:
        self._url = url
        self.pipeline = pipeline

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Asking]:
        with transaction(self._url) as connection:
            yield Asking(connection, self.pipeline)

    def wait(self, batch: int, total: int, seconds: float) -> Outcomes:
        """Wait for the outcomes of a batch, and print how many are left."""
        deadline = time.monotonic() + seconds
        told = time.monotonic()
        while True:
            with self.transaction() as asked:
                found = asked.log().outcomes(batch)
            if not found.open or time.monotonic() >= deadline:
                return found
            if total > 1 and time.monotonic() - told >= 1.0:
                told = time.monotonic()
                tell(f"  {total - found.open:,} of {total:,}", err=True)
            time.sleep(POLL_SECONDS)


def report(
    desk: Desk, batch: int, found: Outcomes, *, as_json: bool, given: Mapping[str, Any] = NOTHING
) -> None:
    """Print the outcomes.

    Args:
        given: further fields of the JSON document.

    Raises:
        NotCarriedOut: some are open.
        Exit: some were refused, or have failed.
    """
    details = {outcome: f" ({detail})" for outcome, detail in found.details.items() if detail}
    print_result(
        {"pipeline": desk.pipeline, **given, "batch": batch, "outcomes": found.counts,
         "details": found.details},
        [f"{outcome}: {count:,}{details.get(outcome, '')}"
         for outcome, count in sorted(found.counts.items())],
        as_json=as_json,
    )  # fmt: skip
    if found.open:
        raise NotCarriedOut(
            f"{found.open:,} requests are not carried out yet; the owners of the keys go on with "
            f"them. See: millwheel log --pipeline {desk.pipeline}. Take them back with: millwheel "
            f"log --withdraw {batch} --pipeline {desk.pipeline}"
        )
    if set(found.counts) != {"done"}:
        raise typer.Exit(1)
