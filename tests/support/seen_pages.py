"""The pages of a store as a viewer's program asks for them, from a server in this process."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import httpx

from millwheel.services.endpoint import Endpoint
from millwheel.store.address import StoreAddress
from millwheel.ui.access import Level, Viewer, ViewerAccess
from millwheel.ui.application import PageOptions
from millwheel.ui.serving import PageServer
from millwheel.ui.visited_store import VisitedStore

ANN = Viewer("ann", Level.MEND)


class SeenPages:
    """Closed with the store that it has opened."""

    def __init__(
        self,
        url: str,
        access: ViewerAccess | None = None,
        *,
        pipeline: str | None = None,
        redact: bool = False,
        prefix: str = "",
        port: int = 0,
    ) -> None:
        self.store = VisitedStore(StoreAddress.parse(url))
        known = ViewerAccess(guests=ANN) if access is None else access
        address = Endpoint(port=port)
        options = PageOptions(pipeline, redact)
        self.server = PageServer(address, self.store, known, options, prefix=prefix)
        self.server.start()
        self.client = httpx.Client(base_url=self.server.url, timeout=30.0)

    @property
    def port(self) -> int:
        return int(self.server.url.rstrip("/").rpartition(":")[2])

    def at(self, path: str) -> str:
        """The address of a path for another client."""
        return self.server.url.rstrip("/") + path

    def get(
        self, path: str, headers: dict[str, str] | None = None, **filters: Any
    ) -> httpx.Response:
        return self.client.get(path, params=filters, headers=headers)

    def json(self, path: str, **filters: Any) -> Any:
        """The figures of a page: ``json("/pipelines/shop/log")``."""
        answer = self.get(f"/api{path}", **filters)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def text(self, path: str, **filters: Any) -> str:
        """The content of a page, without its tags."""
        return text_of(self.get(path, **filters))

    def foresee(self, pipeline: str, verb: str, **form: Any) -> str:
        return self.text(f"/pipelines/{pipeline}/do/{verb}", **form)

    def carry_out(
        self, pipeline: str, verb: str, headers: dict[str, str] | None = None, **form: Any
    ) -> httpx.Response:
        """Send a form, as its page does."""
        return self.client.post(f"/pipelines/{pipeline}/do/{verb}", data=form, headers=headers)

    def close(self) -> None:
        self.client.close()
        self.server.stop()


def text_of(answer: httpx.Response) -> str:
    """The content of a page, without its tags, on one line."""
    found = re.search(r"<main.*?>(.*)</main>", answer.text, re.DOTALL)
    assert found is not None, answer.text
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", found[1])).split())
