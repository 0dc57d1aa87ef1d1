"""``millwheel ui``: the pages of a store in a browser."""

from __future__ import annotations

import os
import sys
import threading
from typing import Annotated

import typer

from millwheel.cli.command import command
from millwheel.cli.operator_desk import actor
from millwheel.cli.options import CommonOptions
from millwheel.cli.printing import tell
from millwheel.errors import UsageError
from millwheel.services.endpoint import Endpoint
from millwheel.store.address import StoreAddress
from millwheel.ui import NEEDS_UI

app = typer.Typer()

MENDING_STORE = "MILLWHEEL_UI_MENDING_STORE"


@command(
    app,
    examples=[
        "millwheel ui",
        "millwheel ui zeitgeist --http 127.0.0.1:9460 --mend",
        "millwheel ui --http 0.0.0.0:9460 --proxy 10.0.0.7 --menders ann,bob",
    ],
)
def ui(
    pipeline: Annotated[
        str | None, typer.Argument(help="The only pipeline to show. Default: all of the store.")
    ] = None,
    http: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Listen on this address.")
    ] = "127.0.0.1:9460",
    mend: Annotated[
        bool,
        typer.Option(
            "--mend", help="Let everybody on this machine change things, and not only look."
        ),
    ] = False,
    proxy: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESSES", help="A proxy that authenticates people: its addresses, by commas."
        ),
    ] = None,
    user_header: Annotated[
        str, typer.Option(metavar="NAME", help="The proxy's header with the user's name.")
    ] = "X-Forwarded-User",
    menders: Annotated[
        str, typer.Option(metavar="NAMES", help="Users of the proxy that may change things.")
    ] = "",
    prefix: Annotated[
        str, typer.Option(metavar="PATH", help="The part of the path that a proxy takes off.")
    ] = "",
    redact: Annotated[bool, typer.Option("--redact", help="Hide keys and values.")] = False,
    stop_with_stdin: Annotated[bool, typer.Option("--stop-with-stdin", hidden=True)] = False,
    *,
    common: CommonOptions,
) -> None:
    """Serve pages that show the pipelines of a store, and mend what fails. Ctrl-C ends it."""
    try:
        from millwheel.ui.serving import PageServer
    except ImportError as error:
        raise UsageError(NEEDS_UI) from error
    from millwheel.ui.access import Access, Level, Proxy, Viewer
    from millwheel.ui.application import Options
    from millwheel.ui.visited_store import VisitedStore

    known = None if proxy is None else Proxy.parse(proxy, user_header, menders)
    everybody = Viewer(actor("").name, Level.MEND if mend else Level.LOOK)
    access = Access.from_environment(everybody=everybody, proxy=known)
    if mend and not access.is_open:
        raise UsageError(
            "--mend lets everybody on this machine change things, and tokens or a proxy say who "
            "may: give one or the other"
        )
    store = VisitedStore(common.address, _mending_store())
    server = PageServer(
        Endpoint.parse(http), store, access, Options(pipeline, redact), prefix=prefix
    )
    with store:
        store.url()  # a wrong address is said here
        server.start()
        try:
            if stop_with_stdin:
                sys.stdin.read()
                return
            tell(f"{server.url} shows {common.address.redacted()}; Ctrl-C ends", err=True)
            threading.Event().wait()  # a signal raises
        finally:
            server.stop()


def _mending_store() -> StoreAddress | None:
    text = os.environ.get(MENDING_STORE)
    return None if text is None else StoreAddress.parse(text)
