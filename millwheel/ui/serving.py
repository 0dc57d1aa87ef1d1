"""The pages on an address of their own, for a command."""

from __future__ import annotations

import re

from millwheel.errors import UsageError
from millwheel.services.app_server import AppServer
from millwheel.services.endpoint import Endpoint
from millwheel.ui.access import LOOK_TOKENS, MEND_TOKENS, ViewerAccess
from millwheel.ui.application import PageOptions, application
from millwheel.ui.visited_store import VisitedStore

PREFIX = re.compile(r"(/[\w.~-]+)*", re.ASCII)


def checked_prefix(text: str) -> str:
    """A path with a slash in front and none behind. `UsageError` for others."""
    found = "/".join(("", text.strip("/"))) if text.strip("/") else ""
    if not PREFIX.fullmatch(found) or {".", ".."} & set(found.split("/")):
        raise UsageError(f"--prefix {text!r} is no path: give one as in /ops/millwheel")
    return found


class PageServer:
    """Serves the pages of a store in a thread.

    Args:
        prefix: of all addresses, if a proxy takes it off: ``/ops/millwheel``.

    Raises:
        UsageError: strangers could look, or the prefix is no path.
    """

    def __init__(
        self,
        address: Endpoint,
        store: VisitedStore,
        access: ViewerAccess,
        options: PageOptions,
        *,
        prefix: str = "",
    ) -> None:
        if access.is_open and not address.is_loopback:
            raise UsageError(
                f"--http {address}: strangers could look at keys and "
                f"states. Set tokens in {LOOK_TOKENS} or {MEND_TOKENS}, name a proxy that "
                "authenticates people with --proxy, or listen on 127.0.0.1"
            )
        self._store = store
        self._server = AppServer(
            application(store, access, options),
            address,
            name="ui",
            option="--http",
            prefix=checked_prefix(prefix),
        )

    @property
    def url(self) -> str:
        """After `start` with the port that was chosen."""
        return f"{self._server.url}/"

    def start(self) -> None:
        """`UsageError` if the address cannot be had."""
        self._server.start()

    def stop(self) -> None:
        """Requests in progress are answered first."""
        self._server.stop()
        self._store.close()
