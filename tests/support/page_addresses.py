"""Addresses that pages lead to: those of links and forms."""

from __future__ import annotations

import re
from html import unescape
from typing import Protocol
from urllib.parse import parse_qsl, urljoin, urlsplit

import httpx

from millwheel.ui.pages import PAGES
from millwheel.ui.verbs import VERBS

LED_TO = re.compile(r"<[a-z]+\b[^>]*?\s(?:href|action|src|formaction)=\"([^\"]*)\"")

MOST_ADDRESSES = 200


def addresses_in(text: str) -> list[str]:
    """Of links, forms, scripts and styles, as they are written."""
    return [unescape(each) for each in LED_TO.findall(text)]


def kind_of(address: str) -> tuple[str, tuple[str, ...]]:
    """The path, and the names of filters: addresses of one kind show the same things of others."""
    parts = urlsplit(address)
    return parts.path, tuple(sorted(name for name, _ in parse_qsl(parts.query)))


class Asks(Protocol):
    def get(self, address: str, /) -> httpx.Response: ...


def crawl(client: Asks, first: str) -> dict[str, httpx.Response]:
    """Follow the links from an address, one of each kind of address; gives the answers."""
    found: dict[str, httpx.Response] = {}
    kinds = set()
    waiting = [first]
    while waiting and len(found) < MOST_ADDRESSES:
        address = waiting.pop(0)
        found[address] = client.get(address)
        if not found[address].headers.get("content-type", "").startswith("text/html"):
            continue
        for link in addresses_in(found[address].text):
            further = urljoin(address, link).partition("#")[0]
            if kind_of(further) not in kinds:
                kinds.add(kind_of(further))
                waiting.append(further)
    return found


def page_paths(pipeline: str) -> list[str]:
    """The pages without filters."""
    pages = [f"/pipelines/{pipeline}/{name}".rstrip("/") for name in PAGES]
    return ["/", *pages]


def verb_paths(pipeline: str) -> list[str]:
    return [f"/pipelines/{pipeline}/do/{name}" for name in VERBS]
