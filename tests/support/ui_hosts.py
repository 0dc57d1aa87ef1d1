"""Applications of users that mount the pages, as `millwheel.ui.app` says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from millwheel.services.app_server import AppServer
from millwheel.services.endpoint import Endpoint
from millwheel.ui import app

PLACE = "/ops/millwheel"


@contextmanager
def served(made: Any, prefix: str = "") -> Iterator[httpx.Client]:
    """A client of an application, which a server has as any other one."""
    server = AppServer(made, Endpoint(), name="host", option="--http", prefix=prefix)
    server.start()
    try:
        with httpx.Client(base_url=server.url, timeout=30.0) as client:
            yield client
    finally:
        server.stop()


def in_starlette(store: str) -> Any:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    return Starlette(routes=[Mount(PLACE, app(store, guests="mend"))])


def in_fastapi(store: str) -> Any:
    from fastapi import FastAPI

    made = FastAPI()
    made.mount(PLACE, app(store, guests="mend"))
    return made


def in_fastapi_behind_a_proxy(store: str) -> Any:
    """The proxy takes off ``/ops``, and the server knows it."""
    from fastapi import FastAPI

    made = FastAPI()
    made.mount("/millwheel", app(store, guests="mend"))
    return made


def in_django(store: str) -> Any:
    """As an ``asgi.py`` of Django has it."""
    from django.conf import settings  # type: ignore[import-untyped]

    if not settings.configured:
        settings.configure(
            ALLOWED_HOSTS=["*"],
            ROOT_URLCONF=__name__,
            SECRET_KEY="for tests",
        )
    from django.core.asgi import get_asgi_application  # type: ignore[import-untyped]
    from starlette.applications import Starlette
    from starlette.routing import Mount

    pages = app(store, guests="mend")
    return Starlette(routes=[Mount(PLACE, pages), Mount("", get_asgi_application())])


def greet(request: Any) -> Any:
    from django.http import HttpResponse  # type: ignore[import-untyped]

    return HttpResponse("Django is here")


class Patterns:
    """Addresses of Django, which it reads when it has its settings."""

    def __iter__(self) -> Iterator[Any]:
        from django.urls import path  # type: ignore[import-untyped]

        return iter([path("hello", greet)])


urlpatterns = Patterns()

HOSTS = {
    "Starlette": in_starlette,
    "FastAPI": in_fastapi,
    "FastAPI behind a proxy": in_fastapi_behind_a_proxy,
    "Django": in_django,
}
