"""Who gets in, by which names and ways, and what happens to requests that no page of ours sends."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import resource
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from millwheel.errors import UsageError
from millwheel.services.endpoint import Endpoint
from millwheel.store.address import StoreAddress
from millwheel.store.console.administration import pause
from millwheel.ui import app
from millwheel.ui.access import LOOK_TOKENS, MEND_TOKENS, Level, Proxy, Viewer, ViewerAccess
from millwheel.ui.application import MOST_FORM_BYTES, PageOptions
from millwheel.ui.pages import PAGES
from millwheel.ui.security_headers import HEADERS
from millwheel.ui.serving import PageServer, checked_prefix
from millwheel.ui.verbs import VERBS
from millwheel.ui.visited_store import VisitedStore
from tests.support.browsed_store import SHOP, BrowsedStore
from tests.support.page_addresses import addresses_in, crawl, page_paths, verb_paths
from tests.support.seen_pages import ANN, SeenPages, text_of
from tests.support.ui_hosts import HOSTS, PLACE, served

PagesOf = Callable[..., SeenPages]

STEPS, LOG = f"/pipelines/{SHOP}", f"/pipelines/{SHOP}/log"
PAUSE = f"/pipelines/{SHOP}/do/pause"
FORM = "application/x-www-form-urlencoded"
BOB = Viewer("bob", Level.LOOK)
ANSWER_SECONDS = 20.0
"""Time that an answer may take on a machine that is busy with other tests."""


@pytest.fixture(scope="module")
def seen(shop: BrowsedStore) -> Iterator[SeenPages]:
    """Everybody on this machine may change things."""
    found = SeenPages(shop.url)
    yield found
    found.close()


@pytest.fixture
def nothing_changes(shop: BrowsedStore) -> Iterator[None]:
    """What operators can change is after the test as before."""

    def state() -> list[Any]:
        return [
            shop.read("SELECT count(*), max(id) FROM request"),
            shop.read("SELECT name FROM computation WHERE paused ORDER BY name"),
            shop.read("SELECT count(*) FROM dead_letter"),
            shop.read("SELECT count(*) FROM states"),
            shop.read("SELECT count(*) FROM timers"),
        ]

    before = state()
    yield
    assert state() == before


def assert_safe(answer: httpx.Response) -> None:
    """It has the headers of all answers."""
    for name, value in HEADERS.items():
        assert answer.headers.get(name) == value, (answer.request.url, name)


# -- names of this machine -------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    ["localhost", "LocalHost:1", "127.0.0.1", "127.0.0.1:9460", "127.8.8.8", "[::1]", "[::1]:9460"],
)
def test_a_name_of_this_machine(host: str, seen: SeenPages) -> None:
    assert seen.get(LOG, {"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:9460", "localhost.evil.example", "127.0.0.1.evil.example",
        "localhost.", "127.1", "2130706433", "10.0.0.1", "[::1", "[", "0.0.0.0", "127.0.0.1:80:90",
        "localhost:80@evil.example", "evil.example#localhost", "",
    ],
)  # fmt: skip
def test_a_foreign_name_of_this_machine(host: str, seen: SeenPages, nothing_changes: None) -> None:
    """A foreign page may have its own name lead here (DNS rebinding): its browser asks by that."""
    for path in ("/", STEPS, f"/api{LOG}", PAUSE, "/metrics"):
        answer = seen.get(path, {"host": host})
        assert answer.status_code in (400, 403), path
        assert "add_up" not in answer.text
        assert "may look" not in answer.text
        if answer.status_code == 403:
            assert "localhost" in answer.text
            assert_safe(answer)
    assert seen.carry_out(SHOP, "resume", {"host": host}, reason="x").status_code in (400, 403)


def test_a_request_without_a_name(seen: SeenPages) -> None:
    answer = raw(seen, b"GET / HTTP/1.0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 403")


# -- tokens ----------------------------------------------------------------------------------


def basic(text: str) -> str:
    return f"Basic {base64.b64encode(text.encode()).decode()}"


@pytest.mark.parametrize(
    ("authorization", "look", "mend"),
    [
        ("Bearer l00k", 200, 403),
        ("bearer m3nd", 200, 200),
        (basic("ann:m3nd"), 200, 200),
        (basic(":l00k"), 200, 403),
        ("Bearer wrong", 401, 401),
        ("Bearer", 401, 401),
        ("Bearer m3n", 401, 401),
        ("Bearer m3nd m3nd", 401, 401),
        ("Bearer l00k,m3nd", 401, 401),
        ("m3nd", 401, 401),
        ("Digest m3nd", 401, 401),
        (basic("m3nd"), 401, 401),
        (basic("m3nd:"), 401, 401),
        (basic("ann:m3nd:"), 401, 401),
        ("Basic m3nd", 401, 401),
        ("Basic ////", 401, 401),
        ("Bearer \u00e9", 401, 401),
        (None, 401, 401),
    ],
)
def test_a_token(
    authorization: str | None, look: int, mend: int, shop: BrowsedStore, pages_of: PagesOf
) -> None:
    tokens = ViewerAccess(
        guests=Viewer("", Level.NONE), look_tokens=("l00k",), mend_tokens=("m3nd",)
    )
    seen = pages_of(shop.url, tokens)
    headers = {} if authorization is None else {"authorization": authorization.encode("latin-1")}
    for path, status in ((STEPS, look), (f"/api{LOG}", look), ("/metrics", look), (PAUSE, mend)):
        answer = seen.client.get(path, headers=headers)  # type: ignore[arg-type]
        assert answer.status_code == status, path
        assert_safe(answer)
        if status == 401:
            assert answer.headers["www-authenticate"].startswith("Basic ")
            assert "add_up" not in answer.text
    assert seen.client.get(f"{STEPS}?token=m3nd").status_code == 401
    assert seen.get("/healthz").status_code == 200


def test_tokens_close_what_was_open(
    monkeypatch: pytest.MonkeyPatch, shop: BrowsedStore, pages_of: PagesOf
) -> None:
    monkeypatch.setenv(LOOK_TOKENS, "one two")
    access = ViewerAccess.from_environment(guests=ANN)
    assert not access.is_open
    seen = pages_of(shop.url, access)
    assert seen.get(STEPS).status_code == 401
    assert seen.get(STEPS, {"authorization": "Bearer two"}).status_code == 200
    monkeypatch.setenv(MEND_TOKENS, " ")
    with pytest.raises(UsageError, match="no token in it"):
        ViewerAccess.from_environment()


# -- a proxy that knows its users ------------------------------------------------------------


@pytest.mark.parametrize(
    ("addresses", "headers", "look", "mend"),
    [
        ("127.0.0.1", {"x-forwarded-user": "ann"}, 200, 200),
        ("127.0.0.0/8, ::1", {"X-Forwarded-User": "bob"}, 200, 403),
        ("127.0.0.1", {}, 401, 401),
        ("127.0.0.1", {"x_forwarded_user": "ann"}, 401, 401),
        ("127.0.0.1", {"x-user": "ann"}, 401, 401),
        ("10.0.0.7", {"x-forwarded-user": "ann"}, 401, 401),
        ("10.0.0.7", {"x-forwarded-user": "ann", "x-forwarded-for": "10.0.0.7"}, 401, 401),
        ("10.0.0.7", {"x-forwarded-user": "ann", "forwarded": "for=10.0.0.7"}, 401, 401),
    ],
)
def test_the_header_of_a_proxy(
    addresses: str, headers: dict[str, str], look: int, mend: int, shop: BrowsedStore,
    pages_of: PagesOf,
) -> None:  # fmt: skip
    proxy = Proxy.parse(addresses, "X-Forwarded-User", "ann, cat")
    seen = pages_of(shop.url, ViewerAccess.from_environment(guests=ANN, proxy=proxy))
    assert seen.get(STEPS, headers).status_code == look
    assert seen.get(PAUSE, headers).status_code == mend


def test_a_proxy_at_an_address_of_both_families() -> None:
    """A socket that listens on ``[::]`` gives IPv4 addresses as IPv6 ones."""
    proxy = Proxy.parse("10.0.0.7", "X-Forwarded-User", "ann")
    for client, level in (
        ("10.0.0.7", Level.MEND), ("::ffff:10.0.0.7", Level.MEND), ("::ffff:10.0.0.8", Level.NONE),
        ("::a00:7", Level.NONE), ("", Level.NONE),
    ):  # fmt: skip
        assert proxy.viewer(client, {"x-forwarded-user": "ann"}).level == level, client


def test_a_wrong_address_of_a_proxy() -> None:
    with pytest.raises(UsageError, match="10\\.0\\.0\\.7,10\\.1\\.0\\.0/16"):
        Proxy.parse("proxy.example", "X-Forwarded-User", "")


# -- levels ----------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_who_may_look_sees_no_change_and_makes_none(
    verb: str, shop: BrowsedStore, pages_of: PagesOf, nothing_changes: None
) -> None:
    looking = pages_of(shop.url, ViewerAccess(guests=BOB))
    path = f"/pipelines/{SHOP}/do/{verb}"
    for answer in (looking.get(path), looking.carry_out(SHOP, verb, reason="x", step="check")):
        assert answer.status_code == 403
        assert "level mend" in text_of(answer)
        assert "<form" not in answer.text


def test_no_page_offers_a_change_to_those_who_may_look(
    shop: BrowsedStore, pages_of: PagesOf
) -> None:
    looking = pages_of(shop.url, ViewerAccess(guests=BOB))
    found = crawl(looking.client, "/")
    assert len(found) > len(PAGES)
    for address, answer in found.items():
        if answer.headers["content-type"].startswith("text/html"):
            links = addresses_in(answer.text)
            assert not any("/do/" in link for link in links), address
            assert 'method="post"' not in answer.text, address


@pytest.mark.parametrize("verb", VERBS)
def test_to_look_at_a_change_changes_nothing(
    verb: str, seen: SeenPages, nothing_changes: None
) -> None:
    found = [each for each in crawl(seen.client, STEPS) if f"/do/{verb}" in each]
    for path in (*found, f"/pipelines/{SHOP}/do/{verb}?reason=because"):
        assert seen.client.get(path).status_code == 200
        assert seen.client.head(path).status_code == 200


# -- other sites -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "get", "post"),
    [
        ({}, 200, 303),
        ({"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}, 200, 303),
        ({"sec-fetch-site": "none", "sec-fetch-mode": "navigate"}, 200, 303),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 200, 403),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "navigate"}, 200, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, 403, 403),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"}, 403, 403),
        ({"sec-fetch-site": "cross-site"}, 403, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate",
          "sec-fetch-dest": "iframe"}, 403, 403),
        ({"sec-fetch-site": "same-origin, cross-site"}, 403, 403),
        ({"sec-fetch-site": ""}, 403, 403),
        ({"origin": "SELF"}, 200, 303),
        ({"origin": "https://evil.example"}, 403, 403),
        ({"origin": "null"}, 403, 403),
        ({"origin": "http://127.0.0.1"}, 403, 403),
        ({"origin": "https://evil.example", "sec-fetch-site": "cross-site"}, 403, 403),
    ],
)  # fmt: skip
def test_requests_that_pages_of_other_sites_send(
    headers: dict[str, str], get: int, post: int, seen: SeenPages, shop: BrowsedStore
) -> None:
    own = {name: value.replace("SELF", seen.at("")) for name, value in headers.items()}
    requests = shop.number("SELECT count(*) FROM request")
    try:
        for path in (STEPS, f"/api{LOG}", PAUSE):
            answer = seen.get(path, own)
            assert answer.status_code == get, path
            assert_safe(answer)
        assert seen.carry_out(SHOP, "resume", own, reason="mine").status_code == post
        assert (shop.number("SELECT count(*) FROM request") > requests) == (post == 303)
    finally:
        pause(shop.url, SHOP)


# -- methods, paths, forms -------------------------------------------------------------------


def test_head_answers_as_get(seen: SeenPages) -> None:
    for path in (*page_paths(SHOP), *verb_paths(SHOP), "/healthz", "/metrics", "/nowhere",
                 "/static/x/page.css"):  # fmt: skip
        got, head = seen.client.get(path), seen.client.head(path)
        assert (head.status_code, head.content) == (got.status_code, b"")
        assert head.headers["content-type"] == got.headers["content-type"]
        assert head.headers["content-length"]
        assert_safe(head)
    closed = raw(seen, f"HEAD {LOG} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    assert closed.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("method", ["OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "FOO"])
def test_other_methods(method: str, seen: SeenPages, nothing_changes: None) -> None:
    for path in (*page_paths(SHOP), *verb_paths(SHOP), "/api/", "/nowhere", "/static/x/page.css"):
        answer = seen.client.request(method, path, headers={"x-secret": "s3cret"})
        assert answer.status_code in (400, 405), path
        assert "s3cret" not in answer.text
        if answer.status_code == 405:
            assert {"GET", "HEAD"} <= set(answer.headers["allow"].replace(",", " ").split())
            assert ("POST" in answer.headers["allow"]) == ("/do/" in path)
            assert_safe(answer)


def test_a_form_to_a_page(seen: SeenPages, nothing_changes: None) -> None:
    for path in (*page_paths(SHOP), f"/api{LOG}", "/", "/static/x/page.css"):
        answer = seen.client.post(path, data={"reason": "x"})
        assert answer.status_code == 405, path
        assert_safe(answer)


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/static/../../access.py",
        "/static/x/../../access.py",
        "/static/x/%2e%2e%2f%2e%2e%2faccess.py",
        "/static/x/..%5c..%5caccess.py",
        "/static/x/page.css/../access.py",
        "/static/x//page.css",
        "/static/%00/page.css%00.html",
        "/static/x/",
        "/static/",
        "/pipelines/%2e%2e/%2e%2e",
        "/pipelines/shop/do/../log",
        "/pipelines/shop/do/pause/",
        "/pipelines/shop/",
        "/pipelines//log",
        "/pipelines/",
        "//evil.example/",
        "//evil.example/%2e%2e",
        "/\\evil.example",
        "/%0d%0alocation:%20x",
        "/%ff%fe",
        "/%",
        "/" + "a" * 9_000,
        "/pipelines/" + "%61" * 3_000,
        "/pipelines/shop/log?" + "a=1&" * 1_000,
        "/pipelines/shop/log?before=1&before=2",
        "/pipelines/shop/log?before=1;before=2",
        "/pipelines/shop/log?%00=1",
        "/pipelines/shop/log?=",
        "/pipelines/shop/log?before=1\u00e9",
    ],
)
def test_odd_paths(path: str, seen: SeenPages) -> None:
    """They lead to no file, to no other site, and to no error of ours."""
    line = f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    head, _, body = raw(seen, line).partition(b"\r\n\r\n")
    status = int(head.split()[1])
    assert status in (400, 404, 405), head
    assert b"\r\nlocation:" not in head.lower()
    for text in (b"root:", b"import ", b"Traceback"):
        assert text not in body
    if body and b"content-security-policy" not in head:
        assert body == b"Invalid HTTP request received."  # no request


def test_an_address_in_full(seen: SeenPages) -> None:
    """As a client of a proxy writes it: it is the name in the header that counts."""
    line = "GET http://localhost/ HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n"
    assert raw(seen, line).split()[1] in (b"403", b"404")


def test_a_head_that_is_too_long(seen: SeenPages) -> None:
    line = f"GET /{'a' * 20_000} HTTP/1.1\r\nhost: localhost\r\n\r\n"
    assert raw(seen, line).split()[1] == b"431"


@pytest.mark.parametrize(
    ("body", "kind", "status", "text"),
    [
        (b"reason=" + b"x" * MOST_FORM_BYTES, FORM, 413, "1,048,576 bytes"),
        (b'{"reason": "x"}', "application/json", 415, "send a form, not application/json"),
        (b"reason=x", "text/plain", 415, "send a form, not text/plain"),
        (b"reason=x", "multipart/form-data; boundary=x", 415, "send a form"),
        (b"reason=x", None, 415, "send a form, not nothing"),
        (b"reason=x&reason=y", FORM, 400, "given twice"),
        (b"reason=x&step=a&step=b", FORM, 400, "given twice"),
        (b"reason=x&" + b"&".join(b"a%d=1" % n for n in range(500)), FORM, 400, "more than 100"),
        (b"reason=\xff", FORM, 400, "cannot be read"),
        (b"reason=x&step=a%00", FORM, 400, "NUL"),
        (b"reason=x&nothing=1", FORM, 400, "has no field 'nothing'"),
        (b"reason=x&step=nothing", FORM, 400, "nothing"),
        (b"", FORM, 400, "say why"),
        (b"&&==&", FORM, 400, ""),
        (b"reason=+%20", FORM, 400, "say why"),
    ],
)
def test_forms_that_no_page_sends(
    body: bytes, kind: str | None, status: int, text: str, seen: SeenPages, nothing_changes: None
) -> None:
    headers = {} if kind is None else {"content-type": kind}
    answer = seen.client.post(PAUSE, content=body, headers=headers)
    assert answer.status_code == status
    assert text in text_of(answer)
    assert_safe(answer)


def test_a_form_in_parts(seen: SeenPages, nothing_changes: None) -> None:
    """Its length is counted as it comes."""

    def parts() -> Iterator[bytes]:
        for _ in range(80):
            yield b"x" * 32_768

    answer = seen.client.post(PAUSE, content=parts(), headers={"content-type": FORM})
    assert answer.status_code == 413


def test_a_kind_of_form_with_a_charset(seen: SeenPages) -> None:
    answer = seen.client.post(
        PAUSE, content=b"reason=", headers={"content-type": f"{FORM.upper()}; charset=UTF-8"}
    )
    assert answer.status_code == 400
    assert "say why" in text_of(answer)


# -- under a prefix --------------------------------------------------------------------------


class StrippedPrefix:
    """The way through a proxy that takes off a prefix."""

    def __init__(self, client: httpx.Client, prefix: str) -> None:
        self._client = client
        self._prefix = prefix

    def get(self, address: str) -> httpx.Response:
        assert address.startswith(self._prefix), address
        return self._client.get(address.removeprefix(self._prefix) or "/")


def assert_under(prefix: str, answers: Mapping[str, httpx.Response]) -> None:
    """All links, forms, scripts and styles stay under a prefix, and lead to pages."""
    assert len(answers) > len(PAGES)
    assert any("/do/" in address for address in answers)
    assert any("/static/" in address for address in answers)
    for address, answer in answers.items():
        assert answer.status_code == 200, (address, answer.text[:300])
        assert_safe(answer)
        if answer.headers["content-type"].startswith("text/html"):
            for link in addresses_in(answer.text):
                assert link.startswith((f"{prefix}/", "?", "#")), (address, link)
                assert not link.startswith("//")


@pytest.mark.parametrize("host", HOSTS)
def test_pages_in_another_application(host: str, shop: BrowsedStore) -> None:
    taken_off = "/ops" if host == "FastAPI behind a proxy" else ""
    with served(HOSTS[host](shop.url), taken_off) as client:
        first = PLACE.removeprefix(taken_off) + "/"
        found = crawl(StrippedPrefix(client, taken_off), f"{PLACE}/")
        assert_under(PLACE, found)
        path = first + PAUSE.removeprefix("/")
        refused = client.post(path, data={"reason": ""})
        assert refused.status_code == 400
        assert f'action="{PLACE}{PAUSE}"' in refused.text
        try:
            done = client.post(path.replace("pause", "resume"), data={"reason": "mounted"})
            assert (done.status_code, done.headers["location"]) == (303, PLACE + LOG)
        finally:
            pause(shop.url, SHOP)
        for odd in (f"{first}/evil.example", f"{first}nowhere"):
            answer = client.get(odd)
            assert answer.status_code == 404
            assert_safe(answer)
        if host == "Django":
            assert client.get("/hello").text == "Django is here"


@pytest.mark.parametrize("prefix", ["/ops", "/ops/millwheel/", "deep/er"])
def test_pages_behind_a_proxy_that_takes_off_a_prefix(
    prefix: str, shop: BrowsedStore, pages_of: PagesOf
) -> None:
    seen = pages_of(shop.url, prefix=prefix)
    whole = f"/{prefix.strip('/')}"
    assert_under(whole, crawl(StrippedPrefix(seen.client, whole), f"{whole}/"))
    try:
        done = seen.carry_out(SHOP, "resume", reason="behind a proxy")
        assert done.headers["location"] == whole + LOG
    finally:
        pause(shop.url, SHOP)


@pytest.mark.parametrize(
    "prefix", ["//evil.example", "/a//b", "/a b", "/a?b", "/../x", "/%2e", '/"']
)
def test_a_prefix_that_is_no_path(prefix: str) -> None:
    if prefix == "//evil.example":
        assert checked_prefix(prefix) == "/evil.example"
        return
    with pytest.raises(UsageError, match="--prefix"):
        checked_prefix(prefix)


# -- an application of the user's ------------------------------------------------------------


def test_an_application_says_who_may_look(
    monkeypatch: pytest.MonkeyPatch, shop: BrowsedStore
) -> None:
    with pytest.raises(UsageError, match="the pages have no way in"):
        app(shop.url)
    with pytest.raises(UsageError, match="'admin' is no level: none, look, mend"):
        app(shop.url, guests="admin")  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        app("mysql://x", guests="look")
    monkeypatch.setenv(MEND_TOKENS, "m3nd")
    with served(app(shop.url)) as client:
        assert client.get("/").status_code == 401
        assert client.get("/", headers={"authorization": "Bearer m3nd"}).status_code == 200


def test_an_application_knows_its_users(shop: BrowsedStore) -> None:
    def viewer(headers: Mapping[str, str]) -> Any:
        name = headers.get("cookie", "")
        known = {"user=ann": ("ann", "mend"), "user=bob": ("bob", "look"), "user=eve": ("eve", "?")}
        if name == "user=bug":
            raise ValueError("s3cret")
        return known.get(name)

    with served(app(shop.url, viewer=viewer)) as client:
        for name, look, mend in (
            ("user=ann", 200, 200), ("user=bob", 200, 403), ("", 401, 401), ("user=eve", 400, 400),
            ("user=bug", 500, 500),
        ):  # fmt: skip
            for path, status in ((LOG, look), (PAUSE, mend)):
                answer = client.get(path, headers={"cookie": name})
                assert answer.status_code == status, name
                assert "s3cret" not in answer.text
                assert_safe(answer)
    with served(app(shop.url, viewer=viewer, guests="look")) as client:
        assert client.get(LOG).status_code == 200
        assert client.get(PAUSE).status_code == 403


def test_an_application_of_one_pipeline_that_hides(shop: BrowsedStore) -> None:
    with served(app(shop.url, SHOP, guests="look", redact=True)) as client:
        assert client.get(LOG).status_code == 200
        assert "(hidden)" in client.get(f"/api{LOG}").text
        assert client.get("/pipelines/other").status_code == 404
    with served(app(shop.url, "other", guests="look")) as client:
        assert client.get(LOG).status_code == 404
        assert "add_up" not in client.get("/").text


def test_an_application_that_is_gone_leaves_its_store(
    monkeypatch: pytest.MonkeyPatch, shop: BrowsedStore
) -> None:
    closed: list[VisitedStore] = []
    monkeypatch.setattr(VisitedStore, "close", lambda store: closed.append(store))
    made = app(shop.url, guests="look")
    assert closed == []
    del made
    gc.collect()
    assert len(closed) == 1


def test_an_open_page_listens_on_this_machine_only(shop: BrowsedStore) -> None:
    store = VisitedStore(StoreAddress.parse(shop.url))
    for address in (Endpoint("0.0.0.0"), Endpoint("192.0.2.1"), Endpoint("::")):
        with pytest.raises(UsageError, match="strangers could look"):
            PageServer(address, store, ViewerAccess(guests=BOB), PageOptions())


# -- slow clients ----------------------------------------------------------------------------


def raw(seen: SeenPages, request: str | bytes) -> bytes:
    """All that the server answers until it closes the connection."""
    data = request.encode("utf-8") if isinstance(request, str) else request
    with socket.create_connection(("127.0.0.1", seen.port), timeout=ANSWER_SECONDS) as connection:
        connection.sendall(data)
        found = bytearray()
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(65_536):
                found += part
    return bytes(found)


@contextlib.contextmanager
def descriptors(wanted: int) -> Iterator[None]:
    """Room for so many sockets, on both sides."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[0] < wanted:
        if 0 <= before[1] < wanted:
            pytest.skip(f"this machine allows {before[1]} open files, and {wanted} are needed")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nhost: localhost\r\nx-slow: ",
        b"POST /pipelines/shop/do/pause HTTP/1.1\r\nhost: localhost\r\ncontent-type: "
        b"application/x-www-form-urlencoded\r\ncontent-length: 100000\r\n\r\nreason=",
    ],
    ids=["heads", "forms"],
)
async def test_a_thousand_slow_clients(
    head: bytes, shop: BrowsedStore, pages_of: PagesOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sends a byte now and then; the page still answers."""
    monkeypatch.setattr("millwheel.ui.application.FORM_SECONDS", 1.0)
    with descriptors(4_000):
        seen = pages_of(shop.url)
        slow = [await asyncio.open_connection("127.0.0.1", seen.port) for _ in range(1_000)]
        try:
            for _, writer in slow:
                writer.write(head)

            async def trickle() -> None:
                while True:
                    for _, writer in slow:
                        if not writer.is_closing():
                            writer.write(b"a")
                    await asyncio.sleep(0.1)

            task = asyncio.create_task(trickle())
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    answered = 0
                    while answered < 5:
                        answered += await asyncio.to_thread(is_answered, seen)
            finally:
                task.cancel()
        finally:
            for _, writer in slow:
                writer.close()


def is_answered(seen: SeenPages) -> bool:
    """A browser opens a connection again that was closed."""
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(seen.at(STEPS), timeout=ANSWER_SECONDS).status_code == 200
    return False


def test_a_slow_form(
    shop: BrowsedStore, pages_of: PagesOf, monkeypatch: pytest.MonkeyPatch, nothing_changes: None
) -> None:
    monkeypatch.setattr("millwheel.ui.application.FORM_SECONDS", 0.2)
    seen = pages_of(shop.url)
    head = f"POST {PAUSE} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {FORM}\r\n"
    answer = raw(seen, f"{head}content-length: 100\r\n\r\nreason=")
    assert answer.split()[1] == b"408"
    assert urlsplit(PAUSE).path.encode() not in answer.partition(b"\r\n\r\n")[0]
