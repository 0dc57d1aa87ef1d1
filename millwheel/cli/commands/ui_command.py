"""``millwheel ui``: the pages of a store in a browser."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import dataclass
from typing import Annotated

import typer

from millwheel.cli.command import command
from millwheel.cli.operator_desk import actor
from millwheel.cli.options import CommonOptions, OptionGroup
from millwheel.cli.page_beside import USUAL
from millwheel.cli.printing import tell
from millwheel.errors import UsageError
from millwheel.services.endpoint import Endpoint
from millwheel.store.address import StoreAddress
from millwheel.ui import NEEDS_UI

app = typer.Typer()

OPERATOR_STORE = "MILLWHEEL_UI_OPERATOR_STORE"


@dataclass(frozen=True)
class WayInOptions(OptionGroup):
    mend: Annotated[
        bool,
        typer.Option(
            "--mend", help="Let all users of this machine change things, and not only look."
        ),
    ] = False
    proxy: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESSES", help="A proxy that authenticates people: its addresses, by commas."
        ),
    ] = None
    user_header: Annotated[
        str, typer.Option(metavar="NAME", help="The proxy's header with the user's name.")
    ] = "X-Forwarded-User"
    menders: Annotated[
        str, typer.Option(metavar="NAMES", help="Users of the proxy that may change things.")
    ] = ""


@dataclass(frozen=True)
class PlaceOptions(OptionGroup):
    http: Annotated[str, typer.Option(metavar="HOST:PORT", help="Listen on this address.")] = str(
        USUAL
    )
    prefix: Annotated[
        str, typer.Option(metavar="PATH", help="The part of the path that a proxy takes off.")
    ] = ""
    stop_with_stdin: Annotated[bool, typer.Option("--stop-with-stdin", hidden=True)] = False


@command(
    app,
    examples=[
        "millwheel ui",
        "millwheel ui zeitgeist --mend",
        "millwheel ui --http 0.0.0.0:9460 --proxy 10.0.0.7 --menders ann,bob",
    ],
)
def ui(
    ways: WayInOptions,
    place: PlaceOptions,
    pipeline: Annotated[
        str | None, typer.Argument(help="The only pipeline to show. Default: all of the store.")
    ] = None,
    redact: Annotated[bool, typer.Option("--redact", help="Hide keys and values.")] = False,
    *,
    common: CommonOptions,
) -> None:
    """Serve pages that show the pipelines of a store, and change them. Ctrl-C ends it."""
    try:
        from millwheel.ui.serving import PageServer
    except ImportError as error:
        raise UsageError(NEEDS_UI) from error
    from millwheel.ui.access import Level, Proxy, Viewer, ViewerAccess
    from millwheel.ui.application import PageOptions
    from millwheel.ui.visited_store import VisitedStore

    known = None
    if ways.proxy is not None:
        known = Proxy.parse(ways.proxy, ways.user_header, ways.menders)
    guests = Viewer(actor("").name, Level.MEND if ways.mend else Level.LOOK)
    access = ViewerAccess.from_environment(guests=guests, proxy=known)
    if ways.mend and not access.is_open:
        raise UsageError(
            "--mend lets all users of this machine change things, and tokens or a proxy name "
            "users: give one or the other"
        )
    store = VisitedStore(common.address, _operator_store())
    server = PageServer(
        Endpoint.parse(place.http),
        store,
        access,
        PageOptions(pipeline, redact),
        prefix=place.prefix,
    )
    with store:
        store.url()  # a wrong address is said here
        server.start()
        try:
            if place.stop_with_stdin:
                sys.stdin.read()
                return
            tell(f"{server.url} shows {common.address.redacted()}; Ctrl-C ends", err=True)
            threading.Event().wait()  # a signal raises
        finally:
            server.stop()


def _operator_store() -> StoreAddress | None:
    text = os.environ.get(OPERATOR_STORE)
    return None if text is None else StoreAddress.parse(text)
