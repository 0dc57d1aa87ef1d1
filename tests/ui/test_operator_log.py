"""*Who did what?*: the log of operators, and one batch of requests."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html import unescape
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import psycopg
import pytest

from millwheel.store.console import administration
from millwheel.store.console.asking import Actor, Asking
from millwheel.store.console.inspection import inspect
from millwheel.store.console.request_log import LogFilter
from millwheel.store.postgres.statements import Statements
from millwheel.ui.pages.operator_log import LISTED
from tests.support.seen_pages import SeenPages, text_of
from tests.support.store_sites import Owner, PostgresSite

pytestmark = pytest.mark.newest

PagesOf = Callable[..., SeenPages]
PAGE = "/pipelines/wheel/log"


@pytest.fixture
async def pages(postgres: PostgresSite, pages_of: PagesOf) -> SeenPages:
    await Owner.take(postgres.store)
    return pages_of(postgres.schema.url)


async def ask(postgres: PostgresSite, batch: int, count: int, **columns: Any) -> None:
    """A batch of requests to retry letters, as they stand in the store."""
    given = {
        "actor": "ann", "verb": "retry", "payload": None, "outcome": None, "detail": None,
        "settled_at": None, **columns,
    }  # fmt: skip
    await postgres.query(
        "INSERT INTO {r} (batch, asked_at, actor, reason, verb, computation, slot, key, letter, "
        "payload, due_at, outcome, detail, settled_at) SELECT %s, now(), %s, 'because', %s, c.id, "
        "1, to_json('k' || n)::text, %s + n, %s::jsonb, now(), %s, %s || n, %s::timestamptz "
        "FROM generate_series(1, %s) AS n, {c} AS c WHERE c.name = 'count'",
        batch, given["actor"], given["verb"], batch * 1_000_000, given["payload"],
        given["outcome"], given["detail"], given["settled_at"], count, r="request",
        c="computation",
    )  # fmt: skip


def batches(found: Any) -> list[int]:
    return [one["batch"] for one in found["batches"]]


async def test_filters_and_a_cursor_lead_through_the_log(
    pages: SeenPages, postgres: PostgresSite
) -> None:
    for batch in range(1, LISTED + 21):
        actor = "bob" if batch % 50 == 0 else "ann"
        await ask(postgres, batch, 2, actor=actor, verb="discard" if batch % 40 == 0 else "retry")
    first = pages.json(PAGE)
    assert batches(first) == list(range(LISTED + 20, 20, -1))
    assert first["next_before"] == 21
    assert batches(pages.json(PAGE, before=21)) == list(range(20, 0, -1))
    assert batches(pages.json(PAGE, actor="bob")) == [100, 50]
    assert batches(pages.json(PAGE, verb="discard")) == [120, 80, 40]
    assert batches(pages.json(PAGE, verb="discard", before=80)) == [40]
    assert batches(pages.json(PAGE, verb="discard", actor="bob")) == []
    assert "No change matches these filters" in pages.text(PAGE, actor="nobody")
    assert "no such batch" in pages.text(PAGE, batch=999)


async def test_a_batch_shows_how_its_requests_go(pages: SeenPages, postgres: PostgresSite) -> None:
    await ask(postgres, 7, 3)
    await ask(postgres, 7, 2, outcome="done", detail="attempt ", settled_at="2026-01-01")
    await ask(postgres, 7, 1, outcome="failed", detail="ValueError: ", settled_at="2026-01-02")
    await ask(postgres, 7, 1, outcome="withdrawn", settled_at="2026-01-03")
    (entry,) = pages.json(PAGE)["batches"]
    counts = (entry["requests"], entry["open"], entry["done"], entry["not_done"])
    assert counts == (7, 3, 2, 1)
    assert "1 withdrawn" in pages.text(PAGE)
    progress = pages.json(PAGE, batch=7)["progress"]
    assert [(one["outcome"], one["requests"]) for one in progress["outcomes"]] == [
        ("open", 3), ("done", 2), ("failed", 1), ("withdrawn", 1),
    ]  # fmt: skip
    assert progress["outcomes"][2]["detail"] == "ValueError: 1"
    text = pages.text(PAGE, batch=7)
    assert "4 of 7 settled" in text
    assert "ValueError: 1" in text
    (failed,) = pages.json(PAGE, batch=7, outcome="failed")["progress"]["requests"]
    assert (failed["key"], failed["detail"]) == ("k1", "ValueError: 1")
    assert "key=%22k1%22" in pages.get(PAGE, batch=7).text, "a link to the key"
    assert len(pages.json(PAGE, batch=7, outcome="open")["progress"]["requests"]) == 3


async def test_an_open_request_says_when_it_is_due(
    pages: SeenPages, postgres: PostgresSite
) -> None:
    """A retry at a rate is carried out over hours."""
    await ask(postgres, 1, 2)
    assert "not before" not in pages.text(PAGE, batch=1)
    await postgres.query(
        "UPDATE {r} SET due_at = '2099-01-01T12:00Z' WHERE key = %s", '"k1"', r="request"
    )
    later = pages.text(PAGE, batch=1, outcome="open")
    assert later.count("not before 2099-01-01 12:00:00 UTC") == 1


async def test_a_link_to_a_key_names_that_key(pages: SeenPages, postgres: PostgresSite) -> None:
    """Also if the key has marks that turn the direction of text, which no page shows."""
    key = "shop \u202e \u200f 7"
    await ask(postgres, 1, 1)
    await postgres.query("UPDATE {r} SET key = to_json(%s::text)::text", key, r="request")
    page = pages.get(PAGE).text
    assert "\u202e" not in page
    (link,) = re.findall(r'href="([^"]*/key\?[^"]*)"', page)
    given = parse_qs(urlsplit(unescape(link)).query)
    assert msgspec.json.decode(given["key"][0]) == key


async def test_the_requests_of_a_batch_go_on_by_a_cursor(
    pages: SeenPages, postgres: PostgresSite
) -> None:
    await ask(postgres, 7, 2 * LISTED + 5)
    found: list[int] = []
    below: int | None = None
    while True:
        filters = {} if below is None else {"below": below}
        progress = pages.json(PAGE, batch=7, **filters)["progress"]
        found += [one["id"] for one in progress["requests"]]
        below = progress["next_below"]
        if below is None:
            break
    assert len(found) == 2 * LISTED + 5
    assert found == sorted(set(found), reverse=True)


async def test_a_change_of_a_state_stands_with_the_state_before(
    pages: SeenPages, postgres: PostgresSite
) -> None:
    values = {"verb": "set_state", "payload": '{"value": {"n": 2}}', "outcome": "done"}
    await ask(postgres, 7, 1, **values, settled_at="2026-01-01")
    await postgres.query("UPDATE {r} SET detail = 'was ' || '[1]'", r="request")
    assert pages.json(PAGE, batch=7)["progress"]["before"] == {"value": [1]}
    text = pages.text(PAGE, batch=7)
    assert "Before [ 1 ]" in text
    assert 'After { "n": 2 }' in text
    await postgres.query("UPDATE {r} SET detail = 'was not JSON', payload = '[]'", r="request")
    await ask(postgres, 8, 1, verb="retry", payload='"by hand"')
    assert pages.json(PAGE, batch=8)["progress"]["before"] is None
    assert "Arguments" in pages.text(PAGE, batch=8)


async def test_long_arguments_are_shown_with_their_batch_only(
    pages: SeenPages, postgres: PostgresSite
) -> None:
    letters = list(range(100_000))
    with administration.transaction(postgres.schema.url) as connection:
        Asking(connection, "wheel").note(Actor("ann", "old"), "discard", {"letters": letters})
    (entry,) = pages.json(PAGE)["batches"]
    assert (entry["payload"], entry["payload_left_out"]) == (None, True)
    assert "with long arguments" in pages.text(PAGE)
    (entry,) = pages.json(PAGE, batch=entry["batch"])["batches"]
    assert entry["payload"] == {"letters": letters}


async def test_open_requests_are_withdrawn(pages: SeenPages, postgres: PostgresSite) -> None:
    await ask(postgres, 7, 3)
    await ask(postgres, 7, 1, outcome="done", settled_at="now")
    assert "do/withdraw?batch=7" in pages.get(PAGE, batch=7).text
    text = pages.foresee("wheel", "withdraw", batch=7)
    assert "takes back 3 requests of batch 7; 1 are settled already" in text
    assert pages.carry_out("wheel", "withdraw", batch=7, reason="too much").status_code == 303
    rows = await postgres.query(
        "SELECT outcome, count(*) FROM {r} WHERE batch = 7 GROUP BY 1 ORDER BY 1", r="request"
    )
    assert rows == [("done", 1), ("withdrawn", 3)]
    (newest,) = pages.json(PAGE, verb="withdraw")["batches"]
    assert (newest["verb"], newest["actor"], newest["reason"]) == ("withdraw", "ann", "too much")
    assert newest["payload"] == {"batch": 7, "requests": 3}
    assert "do/withdraw" not in pages.get(PAGE, batch=7).text
    again = pages.carry_out("wheel", "withdraw", batch=7, reason="again")
    assert "no open request" in text_of(again)
    assert "nothing would change" in pages.foresee("wheel", "withdraw", batch=7)


async def test_the_log_steps_over_the_requests_of_a_large_batch(postgres: PostgresSite) -> None:
    """Of a batch that is not shown, one row is read, whatever its size."""
    await Owner.take(postgres.store)
    await ask(postgres, 1, 1, actor="bob")
    for batch in range(2, 100):
        await ask(postgres, batch, 200 if batch % 10 else 1_000)
    await postgres.query("VACUUM ANALYZE {r}", r="request")
    with inspect(postgres.schema.url) as inspection:
        found = inspection.log("wheel").entries(10, LogFilter(actor="bob"))
        assert [one.batch for one in found] == [1]
    text = Statements("wheel").get("request_log")
    params = {**LogFilter(actor="bob")._asdict(), "limit": 10, "most_bytes": None}
    with psycopg.connect(postgres.schema.url) as connection:
        row = connection.execute(
            f"EXPLAIN (ANALYZE, FORMAT JSON) {text}".encode(), params
        ).fetchone()
    assert row is not None
    assert sum(_rows_read(row[0][0]["Plan"])) < 400, "two for each batch, and one for the first"


def _rows_read(plan: dict[str, Any]) -> Iterator[float]:
    if plan.get("Relation Name") == "request":
        removed = plan.get("Rows Removed by Filter", 0) + plan["Actual Rows"]
        yield removed * plan["Actual Loops"]
    for part in plan.get("Plans", ()):
        yield from _rows_read(part)
