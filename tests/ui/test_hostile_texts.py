"""Texts of strangers on the pages: nothing of them runs, and nothing hidden is shown."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import psycopg
import pytest
from psycopg import sql

from millwheel.core.redaction import hidden
from millwheel.store.console.administration import pause, transaction
from millwheel.store.console.asking import Actor, Asking
from millwheel.ui.access import NAME_CHARACTERS, Proxy, ViewerAccess
from millwheel.ui.application import MOST_REASON_CHARACTERS
from millwheel.ui.hiding import without_secrets
from millwheel.ui.pages import PAGES
from millwheel.ui.rendering import BIDI
from millwheel.ui.verbs import VERBS
from tests.support.browsed_store import SHOP, BrowsedStore
from tests.support.browsers import Browser
from tests.support.hostile_texts import HOSTILE, LONG, SECRET_KEY, SECRET_VALUE
from tests.support.page_addresses import crawl, page_paths, verb_paths
from tests.support.page_parts import PageParts
from tests.support.seen_pages import SeenPages, text_of
from tests.support.store_sites import Owner, PostgresSite, Schema

PagesOf = Callable[..., SeenPages]

LOG = f"/pipelines/{SHOP}/log"

ODD = {
    "all": "".join(HOSTILE.values()),
    "NUL": "a\0b",
    "half": "\udc80",
    "number": "9" * 40,
    "least": "-9223372036854775809",
    "not a number": "NaN",
    "long": "<b>" * 1_000,
    "list": "[[1, null], {}]",
}
"""Texts of fields, in addresses and forms."""


@pytest.fixture(scope="module")
def seen(shop: BrowsedStore) -> Iterator[SeenPages]:
    found = SeenPages(shop.url)
    yield found
    found.close()


@pytest.fixture(scope="module")
def answers(seen: SeenPages) -> dict[str, httpx.Response]:
    """Of all pages, with the texts of the store."""
    found = crawl(seen.client, "/")
    for address in (*page_paths(SHOP), *verb_paths(SHOP)):
        found.setdefault(address, seen.client.get(address))
    return found


def test_no_text_becomes_a_part_of_a_page(answers: dict[str, httpx.Response]) -> None:
    pages = 0
    for address, answer in answers.items():
        assert answer.status_code == 200, (address, answer.text[:500])
        if answer.headers["content-type"].startswith("text/html"):
            assert PageParts(answer.text).foreign == [], address
            assert not any(chr(mark) in answer.text for mark in BIDI), address
            pages += 1
    assert pages >= len(PAGES) + len(VERBS)


def test_texts_are_whole_in_the_json(
    seen: SeenPages, shop: BrowsedStore, answers: dict[str, httpx.Response]
) -> None:
    wanted = {reason for (reason,) in shop.read("SELECT reason FROM request")}
    assert {*HOSTILE.values(), LONG} <= wanted
    found = {entry["reason"] for entry in seen.json(LOG)["batches"]}
    assert wanted == found
    for address, page in answers.items():
        kind = page.headers["content-type"]
        if address.startswith("/pipelines") and "/do/" not in address and "html" in kind:
            answer = seen.client.get(f"/api{address}")
            assert answer.status_code == 200, address
            assert answer.headers["content-type"] == "application/json"
            msgspec.json.decode(answer.content)


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_a_field_of_an_address_may_be_any_text(odd: str, seen: SeenPages) -> None:
    """Each filter of each page, and each field of each change: an answer that says it is wrong, or
    a page without it."""
    text = quote(odd, errors="surrogateescape")
    fields = [
        *((f"/pipelines/{SHOP}/{page.name}".rstrip("/"), page.filters) for page in PAGES.values()),
        *((f"/pipelines/{SHOP}/do/{verb.name}", verb.form) for verb in VERBS.values()),
    ]
    for path, kind in fields:
        for name in (*kind.__struct_fields__, "nothing"):
            answer = seen.client.get(f"{path}?{name}={text}")
            assert answer.status_code in (200, 400, 404), (path, name, answer.text)
            assert PageParts(answer.text).foreign == [], (path, name)
    for path in (f"/pipelines/{text}", f"/pipelines/{SHOP}/{text}", f"/pipelines/{SHOP}/do/{text}"):
        answer = seen.client.get(path)
        assert answer.status_code == 404, path
        assert PageParts(answer.text).foreign == []


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_a_field_of_a_form_may_be_any_text(odd: str, seen: SeenPages) -> None:
    text = quote(odd, errors="surrogateescape")
    for verb in VERBS.values():
        for name in (*verb.form.__struct_fields__, "nothing"):
            answer = seen.client.post(
                f"/pipelines/{SHOP}/do/{verb.name}",
                content=f"{name}={text}&reason=",
                headers={"content-type": "application/x-www-form-urlencoded"},
            )
            assert answer.status_code == 400, (verb.name, name, answer.text)
            assert PageParts(answer.text).foreign == []


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_reason_may_be_any_text(text: str, seen: SeenPages, shop: BrowsedStore) -> None:
    text = text[:MOST_REASON_CHARACTERS].strip()
    for verb in ("resume", "pause"):
        assert seen.carry_out(SHOP, verb, reason=text).status_code == 303
    assert shop.read("SELECT reason FROM request WHERE verb = 'resume' ORDER BY id DESC LIMIT 1") \
        == [(text,)]  # fmt: skip
    page = seen.get(LOG)
    assert PageParts(page.text).foreign == []
    shown = "".join(PageParts(page.text).texts)
    assert text.translate(BIDI).replace("\r\n", "\n") in shown.replace("\r\n", "\n")


def test_a_reason_has_a_length(seen: SeenPages) -> None:
    for reason in ("x" * (MOST_REASON_CHARACTERS + 1), "a\0b"):
        answer = seen.carry_out(SHOP, "resume", reason=reason)
        assert answer.status_code == 400
        assert "the reason has more" in text_of(answer) or "NUL" in text_of(answer)


@pytest.mark.parametrize("name", ["".join(HOSTILE.values()), "\r\n\u202e\0", "", LONG[:4_000]])
def test_a_viewer_may_have_any_name(name: str, shop: BrowsedStore, pages_of: PagesOf) -> None:
    """It comes from the browser, with a token."""
    seen = pages_of(shop.url, ViewerAccess(mend_tokens=("t0ken",)))
    sent = base64.b64encode(f"{name.replace(':', '')}:t0ken".encode()).decode()
    headers = {"authorization": f"Basic {sent}"}
    page = seen.get(LOG, headers)
    assert page.status_code == 200
    assert PageParts(page.text).foreign == []
    refused = seen.carry_out(SHOP, "pause", headers, reason="x", nothing="1")
    assert PageParts(refused.text).foreign == []
    try:
        done = seen.carry_out(SHOP, "resume", headers, reason="any name")
        assert done.status_code == 303
    finally:
        pause(shop.url, SHOP)
    ((actor,),) = shop.read(
        "SELECT actor FROM request WHERE reason = 'any name' ORDER BY id DESC LIMIT 1"
    )
    assert actor.isprintable()
    assert 0 < len(actor) <= NAME_CHARACTERS + 1


def test_a_name_that_looks_like_a_menders(shop: BrowsedStore, pages_of: PagesOf) -> None:
    proxy = Proxy.parse("127.0.0.1", "X-Forwarded-User", "ann,jürgen")
    seen = pages_of(shop.url, ViewerAccess(proxy=proxy))
    pause_page = f"/pipelines/{SHOP}/do/pause"
    for name, status in (
        (b"ann", 200),
        ("jürgen".encode(), 200),
        ("ann\u200b".encode(), 403),
        (b"ann, bob", 403),
        (b"ANN", 403),
        (b"", 401),
    ):
        headers = httpx.Headers([(b"x-forwarded-user", name)])
        assert seen.client.get(pause_page, headers=headers).status_code == status, name
    for names in ((b"ann", b"bob"), (b"bob", b"ann")):
        twice = httpx.Headers([(b"x-forwarded-user", name) for name in names])
        assert seen.client.get(pause_page, headers=twice).status_code == 403


def test_names_of_pipelines(new_schema: Callable[[int], Schema], pages_of: PagesOf) -> None:
    """Anybody who may create schemas chooses a name, and what the table of versions has."""
    schema = new_schema(18)
    names = [text.encode()[:63].decode(errors="ignore") for text in HOSTILE.values()]
    with psycopg.connect(schema.url, autocommit=True) as connection:
        for name in names:
            place = sql.Identifier(name)
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(place))
            for table in ("pipeline", "key_interval", "commit_record"):
                connection.execute(sql.SQL("CREATE TABLE {}.{} ()").format(
                    place, sql.Identifier(table)))  # fmt: skip
            connection.execute(sql.SQL("CREATE TABLE {}.alembic_version AS SELECT {} version_num")
                               .format(place, sql.Literal(name)))  # fmt: skip
    seen = pages_of(schema.url)
    found = {one["name"] for one in seen.json("/")["pipelines"]}
    assert set(names) <= found
    for answer in crawl(seen.client, "/").values():
        assert answer.status_code in (200, 400, 404), answer.text
        if answer.headers["content-type"].startswith("text/html"):
            assert PageParts(answer.text).foreign == []


@pytest.mark.newest
async def test_names_of_steps(postgres: PostgresSite, pages_of: PagesOf) -> None:
    await Owner.take(postgres.store)
    for text in (HOSTILE["script"], HOSTILE["attribute"], HOSTILE["closing"], HOSTILE["path"]):
        postgres.schema.query("UPDATE {c} SET name = %s WHERE id = 2", text, c="computation")
        seen = pages_of(postgres.schema.url)
        for address, answer in crawl(seen.client, "/").items():
            assert answer.status_code in (200, 400, 404), (address, answer.text)
            if answer.headers["content-type"].startswith("text/html"):
                assert PageParts(answer.text).foreign == []


# -- in a browser ----------------------------------------------------------------------------


def is_ours(browser: Browser) -> bool:
    """Whether nothing of a stranger's text runs, is an element, or breaks the page."""
    found = browser.run(
        "return [window.ran === undefined, document.querySelector('.foreign') === null,"
        "document.querySelectorAll('main').length === 1, document.scripts.length === 1]"
    )
    return bool(found == [True] * 4 and browser.overflow() == 0 and browser.complaints() == [])


def test_texts_that_a_page_gets_while_it_is_open(
    browser: Browser, seen: SeenPages, shop: BrowsedStore
) -> None:
    browser.open(seen.at(LOG), width=360)
    with transaction(shop.url) as connection:
        for text in (*HOSTILE.values(), LONG, "the last one"):
            Asking(connection, SHOP).note(Actor(text[:90], text), "note", {text: text})
    browser.until_text("the last one")
    assert is_ours(browser)


@pytest.mark.parametrize("verb", VERBS)
def test_texts_in_fields(verb: str, browser: Browser, seen: SeenPages) -> None:
    kinds = "script", "attribute", "closing", "unclosed", "template", "direction"
    text = quote("".join(HOSTILE[kind] for kind in kinds) + "w" * 200)
    fields = "&".join(f"{name}={text}" for name in (*VERBS[verb].form.__struct_fields__, "reason"))
    browser.open(seen.at(f"/pipelines/{SHOP}/do/{verb}?{fields}"), width=360)
    assert browser.text("h1") == VERBS[verb].title
    assert is_ours(browser)


def test_texts_in_errors(browser: Browser, seen: SeenPages) -> None:
    browser.open(seen.at(f"/pipelines/{quote(ODD['all'], safe='')}"), width=360)
    assert browser.text("h1") == "Not Found"
    assert browser.complaints() != []  # the status 404
    assert is_ours(browser)


# -- hidden ----------------------------------------------------------------------------------


def secrets_in(answer: httpx.Response) -> list[str]:
    text = answer.text + str(answer.headers)
    return [secret for secret in (SECRET_KEY, SECRET_VALUE) if secret in text]


@pytest.fixture(scope="module")
def hiding(shop: BrowsedStore) -> Iterator[SeenPages]:
    found = SeenPages(shop.url, redact=True)
    yield found
    found.close()


def test_a_hidden_key_and_value_are_nowhere(
    hiding: SeenPages, answers: dict[str, httpx.Response]
) -> None:
    """On no page or change, in no JSON and no header, by the links of these pages, and by those of
    pages that hide nothing."""
    assert any(secrets_in(answer) for answer in answers.values())
    addresses = [*crawl(hiding.client, "/"), *answers]
    for address in dict.fromkeys(addresses):
        if secrets_in(httpx.Response(200, text=address)):
            continue  # an address that has it already
        for path in (address, f"/api{address}"):
            answer = hiding.client.get(path)
            assert secrets_in(answer) == [], (path, answer.text)


def test_a_hidden_key_is_in_no_refusal(hiding: SeenPages, shop: BrowsedStore) -> None:
    letters = [id_ for (id_,) in shop.read(
        "SELECT id FROM dead_letter WHERE key::text = %s", f'"{SECRET_KEY}"')]  # fmt: skip
    assert len(letters) == 2
    for verb in VERBS.values():
        for field in verb.form.__struct_fields__:
            for letter in letters:
                answer = hiding.carry_out(SHOP, verb.name, reason="", **{field: letter})
                assert secrets_in(answer) == [], (verb.name, field)


def test_pages_that_hide_are_whole(hiding: SeenPages) -> None:
    """They have as many rows, and as many parts, as those that hide nothing."""
    for path in (*page_paths(SHOP), *verb_paths(SHOP)):
        page = hiding.get(path)
        assert page.status_code == 200, path
        assert PageParts(page.text).foreign == [], path
    assert len(hiding.json(LOG)["batches"]) >= len(HOSTILE)


def test_one_hash_stands_for_a_key_everywhere(hiding: SeenPages, shop: BrowsedStore) -> None:
    """As in the logs of workers."""
    batch = shop.number("SELECT batch FROM request WHERE actor = 'dan'")
    (entry,) = hiding.json(LOG, batch=batch)["batches"]
    assert entry["key"] == hidden(repr(SECRET_KEY))


def test_hidden_texts_of_all_shapes() -> None:
    figures: dict[str, Any] = {
        "key": ["a", 1],
        "holder": {"what": 'key "secret": timer secret, due 2024', "age_seconds": 1.0},
        "rows": [["secret"]],
        "entries": {"secret": 1},
        "name": "kept",
        "none": None,
    }
    found = without_secrets(figures)
    assert "secret" not in str(found)
    assert found["holder"]["what"].startswith(f"{hidden(repr('secret'))}: ")
    assert found["name"] == "kept"
