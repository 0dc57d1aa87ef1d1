"""A page to look at: the pipelines of a store in a browser.

``millwheel ui`` serves it; `app` gives it to an application::

    app.mount("/millwheel", millwheel.ui.app("postgresql://…", guests="look"))

In the ``asgi.py`` of a Django project, with the users of the project::

    def viewer(headers):
        user = user_of_session(headers.get("cookie", ""))
        return user and (user.username, "mend" if user.is_staff else "look")

    pages = millwheel.ui.app("postgresql://…", viewer=viewer)
    application = Starlette(
        routes=[Mount("/millwheel", pages), Mount("", get_asgi_application())]
    )
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

from millwheel.core.distribution import install
from millwheel.errors import UsageError

if TYPE_CHECKING:
    from starlette.applications import Starlette

__all__ = ["app"]

LevelName = Literal["none", "look", "mend"]

NEEDS_UI = f"the pages need a web server: {install('ui')}"


def app(
    store: str | None = None,
    pipeline: str | None = None,
    *,
    viewer: Callable[[Mapping[str, str]], tuple[str, LevelName] | None] | None = None,
    guests: LevelName | None = None,
    operator_store: str | None = None,
    redact: bool = False,
) -> Starlette:
    """The pages as an ASGI application, to be mounted in another one.

    ```python
    from starlette.applications import Starlette
    from starlette.routing import Mount
    from millwheel import ui

    pages = ui.app("postgresql://db/shop", guests="look")
    application = Starlette(routes=[Mount("/millwheel", pages)])
    ```

    Args:
        store: as ``--store``: a directory or a Postgres URL; None: ``MILLWHEEL_STORE``, or
            ``.millwheel``. A reader's login is enough to look.
        pipeline: the only one to show; None: all of the store.
        viewer: gives name and level of the sender of a request, by its headers (their names are in
            small letters); None: it is a stranger.
        guests: level of strangers, if the application guards the pages itself.
        operator_store: URL with the login of an operator, for changes; None: that of `store`.
        redact: hide keys and values.

    Raises:
        UsageError: a package is missing, the address is wrong, or there is no way in: give
            `viewer` or `guests`, or set ``MILLWHEEL_UI_LOOK_TOKENS`` or
            ``MILLWHEEL_UI_MEND_TOKENS``.
    """
    try:
        from millwheel.ui.application import PageOptions, application
    except ImportError as error:
        raise UsageError(NEEDS_UI) from error
    from millwheel.store.address import StoreAddress
    from millwheel.ui.access import Viewer, ViewerAccess, level_of, name_in_log
    from millwheel.ui.visited_store import VisitedStore

    guest = None if guests is None else Viewer("", level_of(guests, "guests"))

    def named(client: str, headers: Mapping[str, str]) -> Viewer | None:
        found = None if viewer is None else viewer(headers)
        if found is not None:
            return Viewer(name_in_log(found[0]), level_of(found[1], "viewer"))
        return guest

    access = ViewerAccess.from_environment(host=named)
    if viewer is None and guests is None and not access.asks_for_password:
        raise UsageError(
            "the pages have no way in: give app(viewer=...) or app(guests=...), or set tokens in "
            "MILLWHEEL_UI_LOOK_TOKENS or MILLWHEEL_UI_MEND_TOKENS"
        )
    operator = None if operator_store is None else StoreAddress.parse(operator_store)
    visited = VisitedStore(StoreAddress.parse(store), operator)
    made = application(visited, access, PageOptions(pipeline, redact))
    weakref.finalize(made, visited.close)  # no server tells a mounted application of its end
    return made
