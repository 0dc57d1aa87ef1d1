"""``millwheel dev``: run a pipeline while its code is written."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import typer

from millwheel.cli.command import command
from millwheel.cli.developing.dev_session import DevSession
from millwheel.cli.developing.reports import VersionOptions
from millwheel.cli.options import CodeOptions, CommonOptions, ServingOptions, Yes
from millwheel.cli.page_beside import can_be_served, page_beside
from millwheel.cli.printing import say
from millwheel.cli.sql_files import SUFFIX
from millwheel.cli.target import parts_of
from millwheel.core.own_loop import run_to_end
from millwheel.services.endpoint import Endpoint
from millwheel.services.interruption import Interruption
from millwheel.store.address import StoreAddress
from millwheel.store.console.presence import present

app = typer.Typer()


@command(app, examples=["millwheel dev zeitgeist:pipeline", "millwheel dev trends.sql"])
def dev(
    code: CodeOptions, serving: ServingOptions, yes: Yes = False, *, common: CommonOptions
) -> None:
    """Run a pipeline, show the rows of its sinks, and start it again when its code changes.

    The state is kept. A version with an error is shown, and waits for the next change. Before
    stored data changes, the command asks.
    """
    os.environ.setdefault("MILLWHEEL_LOG_LEVEL", "warning")  # rows are easier to read alone
    target = code.target
    if not target.endswith(SUFFIX):
        parts_of(target)
    tokens = serving.ingest_tokens
    options = VersionOptions(
        target,
        _with_port(serving.http),
        _with_port(serving.ingest),
        None if tokens is None else str(tokens),
        common.debug,
        code.name,
    )
    address = common.address
    with present(address, create=True) as presence, _page(address):
        _say(f"{code.words} on the store {address.redacted()}; Ctrl-C ends")

        async def work() -> Interruption:
            with Interruption() as interruption:
                await DevSession(options, presence.url, address, _say, confirmed=yes).run(
                    interruption.asked
                )
                return interruption

        interruption = run_to_end(work())
    _say(f"stopped; the state is kept in {address.redacted()}")
    raise typer.Exit(interruption.exit_code)


@contextmanager
def _page(address: StoreAddress) -> Iterator[None]:
    """Serve pages of the store during the block, if their packages are installed."""
    if not can_be_served():
        yield
        return
    with page_beside(address, None) as url:
        _say(f"{url} shows it")
        yield


def _with_port(address: str | None) -> str | None:
    """An address with a port that all versions of the code have: port 0 is a free one."""
    if address is None or (found := Endpoint.parse(address)).port:
        return address
    with found.listen("--http or --ingest", backlog=1) as listener:
        return str(replace(found, port=listener.getsockname()[1]))


def _say(text: str) -> None:
    say(text)
    sys.stdout.flush()
