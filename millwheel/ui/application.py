"""The pages as an ASGI application: routes, viewers, errors.

::

    /                                   the pipelines of the store
    /pipelines/NAME                     the first page of a pipeline
    /pipelines/NAME/PAGE                a further page; its query has the filters
    /pipelines/NAME/PAGE.SUFFIX         of some pages: the same as a file
    /pipelines/NAME/do/VERB             GET: the effects that a change would have; POST: do it
    /api/...                            the figures of the same page as JSON
    /healthz, /metrics                  of the store (`millwheel.services.store_endpoint`)
    /static/DIGEST/NAME                 style and script

All addresses are relative to the prefix under which the application is mounted. Each page is made
in a thread, of one look at the store, which all viewers of the same second share.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from itertools import chain
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import structlog
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from millwheel.errors import MillwheelError, StoreError, UsageError, UserCodeError
from millwheel.services.store_endpoint import StoreAnswers, look
from millwheel.store.console.asking import Actor
from millwheel.ui.access import (
    NOBODY,
    Level,
    Viewer,
    ViewerAccess,
    is_from_another_site,
    may_be_led_by_another_site,
    one_of_each,
)
from millwheel.ui.given_fields import fields_of
from millwheel.ui.hiding import shown_figures
from millwheel.ui.page import NoSuchPipeline, Page, Visit, require_pipeline
from millwheel.ui.pages import OVERVIEW, PAGES
from millwheel.ui.rate_history import RateHistory
from millwheel.ui.rendering import digest_of, render, static_files
from millwheel.ui.security_headers import SafeAnswers
from millwheel.ui.shared_looks import SharedLooks
from millwheel.ui.verb import Verb, VerbDesk
from millwheel.ui.verbs import VERBS
from millwheel.ui.visited_store import VisitedStore

MOST_FORM_BYTES = 1 << 20
"""Of a form; a record that is edited may have so many."""

FOREVER = "public, max-age=31536000, immutable"

CONTENT_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

MOST_REASON_CHARACTERS = 500

FORM_SECONDS = 10.0
"""Longest time that a form may take to arrive."""

NEEDS_A_REASON = "say why: the reason stands in the log of operators"

TOO_LONG_A_REASON = f"the reason has more than {MOST_REASON_CHARACTERS} characters"


DATA_EXCEPTION = "22"
"""Class of SQLSTATE."""

TOO_LARGE = HTTPStatus(413)  # its name is another one since Python 3.13


class PageRefused(Exception):
    """A request that is answered with a status and a sentence."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class PageOptions:
    pipeline: str | None = None
    """The only pipeline that is shown; None: all of the store."""
    redact: bool = False
    """Hide keys and values."""


class PageSite:
    """Answers requests. Made by `application`."""

    def __init__(self, store: VisitedStore, access: ViewerAccess, options: PageOptions) -> None:
        self._store = store
        self._access = access
        self._options = options
        self._looks = SharedLooks()
        self._rates = RateHistory()
        self._answers = StoreAnswers(lambda: look(store.url(), options.pipeline))

    # -- pages

    async def overview(self, request: Request) -> Response:
        return await self._page(request, OVERVIEW, "")

    async def page(self, request: Request) -> Response:
        page = PAGES.get(request.path_params.get("page", ""))
        if page is None:
            raise _no_page(request)
        return await self._page(request, page, self._pipeline(request))

    async def _page(self, request: Request, page: Page[Any], pipeline: str) -> Response:
        viewer = self._admitted(request, Level.LOOK)
        given = _query(request)
        filters = page.read_filters(given)

        def look() -> Any:
            kind = (page.name, pipeline, tuple(sorted(given.items())))
            return self._looks.get(kind, lambda: self._figures(page, pipeline, filters))

        figures = await run_in_threadpool(look)
        if page.ask is not None:
            visit = self._visit(request, viewer, pipeline)
            answer = await run_in_threadpool(page.ask, visit, filters)
            figures = {**figures, "answer": msgspec.to_builtins(answer)}
        if request.path_params.get("as_json"):
            return _unless_same(request, msgspec.json.encode(figures), "application/json")
        text = await run_in_threadpool(
            render,
            page.template,
            {
                **self._context(request, viewer, pipeline),
                "page": page,
                "filters": msgspec.to_builtins(filters),
                "given": given,
                "figures": figures,
            },
        )
        return _unless_same(request, text.encode(), "text/html; charset=utf-8")

    async def download(self, request: Request, page: Page[Any]) -> Response:
        viewer, pipeline = self._admitted(request, Level.LOOK), self._pipeline(request)
        given = _query(request)
        filters = page.read_filters(given)
        visit = self._visit(request, viewer, pipeline)
        if visit.may_be_led_here:  # the page says what the address asks
            address = _address(request, pipeline, page.name, given)
            return RedirectResponse(address, HTTPStatus.SEE_OTHER)
        assert page.download is not None
        parts = await run_in_threadpool(page.download.parts, visit, filters)
        first = await run_in_threadpool(next, parts, b"")
        name = quote(f"{pipeline}-{page.name}.{page.download.suffix}")
        return StreamingResponse(
            chain((first,), parts),
            media_type=page.download.content_type,
            headers={"content-disposition": f"attachment; filename*=UTF-8''{name}"},
        )

    def _visit(self, request: Request, viewer: Viewer, pipeline: str) -> Visit:
        return Visit(
            self._store,
            pipeline,
            viewer.level >= Level.MEND,
            may_be_led_by_another_site(_headers(request)),
            self._options.redact,
            self._options.pipeline,
        )

    def _figures(self, page: Page[Any], pipeline: str, filters: Any) -> Any:
        with self._store.inspecting() as inspection:
            if pipeline:
                require_pipeline(inspection, pipeline)
            looked = page.look(inspection, pipeline or self._options.pipeline or "", filters)
        if page.remember is not None:
            looked = page.remember(looked, self._rates)
        return shown_figures(looked, redact=self._options.redact)

    # -- changes

    async def change(self, request: Request) -> Response:
        post = request.method == "POST"
        return await (self.carry_out(request) if post else self.foresee(request))

    async def foresee(self, request: Request) -> Response:
        """Show the effects that a change would have."""
        viewer = self._admitted(request, Level.MEND)
        given = _query(request)
        reason = given.pop("reason", "")
        return await self._foreseen(request, viewer, given, "", reason)

    async def carry_out(self, request: Request) -> Response:
        viewer = self._admitted(request, Level.MEND)
        given = await _form(request)
        reason = given.pop("reason", "").strip()
        if not reason:
            return await self._foreseen(request, viewer, given, NEEDS_A_REASON)
        if len(reason) > MOST_REASON_CHARACTERS:
            return await self._foreseen(request, viewer, given, TOO_LONG_A_REASON, reason)
        verb, desk = self._verb(request)
        try:
            form = verb.read(given)
            asked = await run_in_threadpool(verb.carry_out, desk, Actor(viewer.name, reason), form)
        except (UsageError, UserCodeError) as error:
            return await self._foreseen(request, viewer, given, str(error), reason)
        self._looks.forget()
        structlog.get_logger().info(
            "asked", pipeline=desk.pipeline, verb=verb.name, actor=viewer.name, batch=asked.batch
        )
        address = _address(request, desk.pipeline, asked.page, asked.filters)
        return RedirectResponse(address, HTTPStatus.SEE_OTHER)

    async def _foreseen(
        self,
        request: Request,
        viewer: Viewer,
        given: dict[str, str],
        error: str,
        reason: str = "",
    ) -> Response:
        verb, desk = self._verb(request)
        foreseen = None
        try:
            if not verb.needs_more(given):
                form = verb.read(given)
                foreseen = await run_in_threadpool(verb.foresee, desk, form)
        except (UsageError, UserCodeError) as wrong:
            error = error or str(wrong)
        values = {
            **self._context(request, viewer, desk.pipeline),
            "verb": verb,
            "given": given if foreseen is None else _filled(given, foreseen.suggested),
            "reason": reason,
            "most_reason": MOST_REASON_CHARACTERS,
            "foreseen": foreseen,
            "error": error,
        }
        text = await run_in_threadpool(render, "verb.html", values)
        status = HTTPStatus.BAD_REQUEST if error and request.method == "POST" else HTTPStatus.OK
        return Response(text, status, media_type="text/html")

    def _verb(self, request: Request) -> tuple[Verb[Any], VerbDesk]:
        verb = VERBS.get(request.path_params["verb"])
        if verb is None:
            raise _no_page(request)
        return verb, VerbDesk(self._store, self._pipeline(request), self._options.redact)

    # -- the rest

    async def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in static_files():
            raise _no_page(request)
        kind = CONTENT_TYPES[name[name.rindex(".") :]]
        found = Response(static_files()[name], media_type=kind)
        found.headers["cache-control"] = FOREVER
        return found

    async def probe(self, request: Request) -> Response:
        """``/healthz`` for all, ``/metrics`` for viewers."""
        path = request.scope["path"].rpartition("/")[2]
        if path != "healthz":
            self._admitted(request, Level.LOOK)
        found = await self._answers.answer(f"/{path}", request.headers.get("accept", ""))
        return Response(found.body, found.status, media_type=found.content_type)

    async def refuse(self, request: Request, error: Exception) -> Response:
        """The answer to a request that failed: a page, or JSON."""
        status, text = _refusal(error)
        pipeline = request.path_params.get("pipeline", "")
        if isinstance(error, Unknown) and self._access.asks_for_password:
            return Response(
                text, status, {"www-authenticate": 'Basic realm="millwheel", charset="UTF-8"'}
            )
        if request.path_params.get("as_json"):
            return Response(
                msgspec.json.encode({"error": text}), status, media_type="application/json"
            )
        try:
            viewer = self._viewer(request)
        except Exception:  # the application's function of viewers: that may be the error
            viewer = NOBODY
        shown = "" if isinstance(error, NoSuchPipeline) or viewer.level == Level.NONE else pipeline
        values = {
            **self._context(request, viewer, shown),
            "status": status,
            "error": text,
        }
        return Response(render("error.html", values), status, media_type="text/html")

    def _pipeline(self, request: Request) -> str:
        pipeline: str = request.path_params["pipeline"]
        if self._options.pipeline not in (None, pipeline):
            raise NoSuchPipeline(
                f"this page shows the pipeline {self._options.pipeline!r} only, not {pipeline!r}"
            )
        return pipeline

    def _viewer(self, request: Request) -> Viewer:
        client = request.client
        return self._access.viewer("" if client is None else client.host, _headers(request))

    def _admitted(self, request: Request, level: Level) -> Viewer:
        changes = request.method == "POST"
        if is_from_another_site(_headers(request), changes=changes):
            raise PageRefused(HTTPStatus.FORBIDDEN, "a page of another site has sent this request")
        viewer = self._viewer(request)
        if viewer.level == Level.NONE and self._access.is_open:
            raise PageRefused(
                HTTPStatus.FORBIDDEN,
                "without tokens the pages answer to a name of this machine only: open them as "
                "http://localhost or http://127.0.0.1, with the same port",
            )
        if viewer.level == Level.NONE:
            raise Unknown("this page needs a name and a token")
        if viewer.level < level:
            raise PageRefused(
                HTTPStatus.FORBIDDEN,
                f"{viewer.name or 'you'} may look, and not change anything. {HOW_TO_MEND}",
            )
        return viewer

    def _context(self, request: Request, viewer: Viewer, pipeline: str) -> dict[str, Any]:
        root = request.scope.get("root_path", "")

        def address(page: str = "", of: str = pipeline, **filters: Any) -> str:
            return _address(request, of, page, filters)

        return {
            "address": address,
            "static": lambda name: f"{root}/static/{digest_of(name)}/{name}",
            "home": f"{root}/",
            "pages": list(PAGES.values()),
            "pipeline": pipeline,
            "viewer": viewer,
            "may_look": viewer.level >= Level.LOOK,
            "may_mend": viewer.level >= Level.MEND,
            "redacts": self._options.redact,
            "page": None,
        }


HOW_TO_MEND = (
    "Changes need the level mend: a token of MILLWHEEL_UI_MEND_TOKENS, a name of --menders, or "
    "--mend for all users of this machine"
)


NO_RIGHT = "42501"
"""SQLSTATE."""

NEEDED_ROLES = (
    "To look at a pipeline, the login of the pages needs its role DATABASE_PIPELINE_reader, and to "
    "change it DATABASE_PIPELINE_operator (with MILLWHEEL_UI_OPERATOR_STORE, a login of its own): "
    "`millwheel migrate PIPELINE --roles` makes them"
)


class Unknown(Exception):
    """A request of a stranger."""


def application(store: VisitedStore, access: ViewerAccess, options: PageOptions) -> Starlette:
    """The pages of a store.

    Args:
        store: stays open after the application; its maker closes it.
    """
    site = PageSite(store, access, options)
    routes = []
    for prefix, as_json in (("", False), ("/api", True)):
        for path, answer in (
            ("/", site.overview),
            ("/pipelines/{pipeline}", site.page),
            ("/pipelines/{pipeline}/{page}", site.page),
        ):
            routes.append(Route(prefix + path, _guarded(site, answer, as_json=as_json)))
    for name, page in PAGES.items():
        if page.download is not None:  # first: otherwise it would be a page of this name
            path = f"/pipelines/{{pipeline}}/{name}.{page.download.suffix}"
            routes.insert(0, Route(path, _guarded(site, partial(site.download, page=page))))
    change = "/pipelines/{pipeline}/do/{verb}"
    routes += [
        Route(change, _guarded(site, site.change), methods=["GET", "POST"]),
        Route("/healthz", _guarded(site, site.probe)),
        Route("/metrics", _guarded(site, site.probe)),
        Route("/static/{digest}/{name}", _guarded(site, site.static)),
        Route("/{rest:path}", _guarded(site, _nowhere)),
    ]

    async def refuse(request: Request, error: Exception) -> Response:
        found = await site.refuse(request, error)
        found.headers.update(getattr(error, "headers", None) or {})  # which methods there are
        return found

    return Starlette(
        routes=routes,
        middleware=[Middleware(SafeAnswers)],
        exception_handlers={HTTPException: refuse},
    )


async def _nowhere(request: Request) -> Response:
    raise _no_page(request)


def _no_page(request: Request) -> PageRefused:
    return PageRefused(HTTPStatus.NOT_FOUND, f"there is no page {request.scope['path']}")


Answer = Callable[[Request], Any]


def _guarded(site: PageSite, answer: Answer, *, as_json: bool = False) -> Answer:
    """An endpoint that has an answer for each error."""

    async def guarded(request: Request) -> Response:
        request.scope["path_params"]["as_json"] = as_json
        try:
            found: Response = await answer(request)
        except ClientDisconnect:
            raise  # nobody is left who could be answered
        except Exception as error:
            found = await site.refuse(request, error)
        return found

    return guarded


def _refusal(error: Exception) -> tuple[HTTPStatus, str]:
    if isinstance(error, PageRefused):
        return error.status, str(error)
    if isinstance(error, HTTPException):
        return HTTPStatus(error.status_code), error.detail
    if isinstance(error, Unknown):
        return HTTPStatus.UNAUTHORIZED, str(error)
    if isinstance(error, NoSuchPipeline):
        return HTTPStatus.NOT_FOUND, str(error)
    if isinstance(error, UsageError | UserCodeError):  # a key that no record can have
        return HTTPStatus.BAD_REQUEST, str(error)
    if _is_about_a_value(error):
        return HTTPStatus.BAD_REQUEST, f"the store cannot read a value of this request: {error}"
    if _sqlstate(error) == NO_RIGHT:
        return HTTPStatus.FORBIDDEN, f"{error}. {NEEDED_ROLES}"
    if isinstance(error, StoreError | MillwheelError):
        return HTTPStatus.SERVICE_UNAVAILABLE, str(error)
    structlog.get_logger().error("page_failed", exc_info=error)
    text = f"this is a bug of millwheel: {type(error).__name__}. The log of the page has more"
    return HTTPStatus.INTERNAL_SERVER_ERROR, text


def _is_about_a_value(error: Exception) -> bool:
    """Whether the store answers, and refuses a value that a viewer has sent: a number that is too
    large for a column, or text that is no JSON."""
    return isinstance(error, StoreError) and _sqlstate(error).startswith(DATA_EXCEPTION)


def _sqlstate(error: Exception) -> str:
    """Postgres' code for the cause; empty: Postgres has not refused anything."""
    return getattr(error.__cause__, "sqlstate", None) or ""


def _address(request: Request, pipeline: str, page: str, filters: Mapping[str, Any]) -> str:
    root = request.scope.get("root_path", "")
    path = f"{root}/pipelines/{quote(pipeline, safe='')}" + (f"/{page}" if page else "")
    given = {name: value for name, value in filters.items() if value not in (None, "")}
    return f"{path}?{urlencode(given)}" if given else path


def _unless_same(request: Request, body: bytes, content_type: str) -> Response:
    """304 if the browser has this body already."""
    tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    headers = {"etag": tag, "cache-control": "private, no-cache", "vary": "authorization"}
    had = request.headers.get("if-none-match", "").removeprefix("W/")  # by a proxy that compresses
    if had == tag:
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    return Response(body, headers=headers, media_type=content_type)


def _filled(given: Mapping[str, str], suggested: Mapping[str, str]) -> dict[str, str]:
    """The fields of a form, with suggestions for those that are empty."""
    return {**given, **{name: text for name, text in suggested.items() if not given.get(name)}}


async def _form(request: Request) -> dict[str, str]:
    """The fields of a form. `PageRefused` if it is too large, or no form."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise PageRefused(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"send a form, not {kind or 'nothing'}"
        )
    body = bytearray()
    try:
        async with asyncio.timeout(FORM_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > MOST_FORM_BYTES:
                    raise PageRefused(
                        TOO_LARGE, f"the form has more than {MOST_FORM_BYTES:,} bytes"
                    )
    except TimeoutError as error:
        raise PageRefused(
            HTTPStatus.REQUEST_TIMEOUT, f"the form took more than {FORM_SECONDS:g} s to arrive"
        ) from error
    try:
        return fields_of(body.decode())
    except UnicodeDecodeError as error:
        raise UsageError(f"the form cannot be read: {error}") from error


def _query(request: Request) -> dict[str, str]:
    return fields_of(request.scope["query_string"].decode("latin-1"))


def _headers(request: Request) -> dict[str, str]:
    return one_of_each(request.headers.items())
