"""*What about this key?*: the page says what the views say, and goes on by cursor."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from itertools import chain, count
from typing import Any

import msgspec
import pytest

from millwheel.core.codec import encode_key
from millwheel.core.model import from_micros
from millwheel.store.console import key_history, some_keys
from millwheel.ui.access import Level, Viewer, ViewerAccess
from millwheel.ui.pages import key_page
from tests.support.seen_pages import SeenPages, text_of
from tests.support.store_sites import COUNT, GRAPH, SECOND, START, Owner, PostgresSite, deploy

pytestmark = pytest.mark.newest

PagesOf = Callable[..., SeenPages]

KEY = "/pipelines/wheel/key"
LOOKS = ViewerAccess(guests=Viewer("eve", Level.LOOK))


NEIGHBOUR = next(key for n in count() if encode_key(key := f"key {n}")[1] == encode_key("a")[1])
"""A key in the slot of "a"."""


@pytest.fixture
async def owner(postgres: PostgresSite) -> Owner:
    """Of a pipeline whose only step also sends records to itself."""
    step = replace(COUNT, upstream=["lines", "count"])
    return await Owner.take(postgres.store, await deploy(postgres.store, count=step))


async def fold(postgres: PostgresSite, owner: Owner, key: Any) -> None:
    """Fold all commits of a key's interval."""
    row = owner.interval_of(key)
    link = owner.links[row.id]
    ((after,),) = await postgres.query("SELECT through FROM {f} WHERE interval_id = %s", row.id,
                                       f="fold")  # fmt: skip
    assert await postgres.store.fold(row.id, link.sequencer, after, link.n)


async def write_key(postgres: PostgresSite, owner: Owner) -> None:
    """Key "a": folded and unfolded states, entries and timers, some of them replaced and removed;
    key "b" beside it."""
    row = owner.interval_of("a")
    commit = owner.commit(row)
    commit.states = [
        owner.state("a", {"n": 1, "inside": {"deep": [1, 2]}}),
        *(owner.state("a", n, f"seen/{n:04}") for n in range(250)),
    ]
    commit.timers = [owner.timer("a", START + n % 7, f"tag {n:03}") for n in range(230)]
    commit.productions = [owner.production(key, {"v": key}) for key in ("a", "b", "a")]
    await owner.write(commit)
    await fold(postgres, owner, "a")
    commit = owner.commit(row)
    commit.states = [
        owner.state("a", {"n": 2, "inside": {"deep": [3]}}),
        owner.state("a", None, "seen/0007"),
        owner.state("a", "new", "seen/0008"),
        owner.state("a", "more", "seen/0008b"),
    ]
    commit.timers = [
        owner.timer("a", None, "tag 003"),
        owner.timer("a", START + 3, "tag 001"),
        owner.timer("a", START + 5 * SECOND, "tick", "wall"),
    ]
    await owner.write(commit)


async def test_the_page_says_what_the_views_say(
    postgres: PostgresSite, owner: Owner, pages_of: PagesOf
) -> None:
    await write_key(postgres, owner)
    pages = pages_of(postgres.schema.url)
    found = pages.json(KEY, key="a")
    one = found["one"]
    assert [(step["name"], step["label"]) for step in found["steps"]] == [("count", "count")]
    assert one["state"] == {"n": 2, "inside": {"deep": [3]}}
    row = owner.interval_of("a")
    place = (one["slot"], one["interval"], one["slot_from"], one["slot_to"], one["owner"])
    assert place == (encode_key("a")[1], row.id, row.slot_from, row.slot_to, owner.worker)
    sent = await postgres.query(
        "SELECT id::text, value FROM {v} WHERE key = '\"a\"'::jsonb ORDER BY seq",
        v="pending_productions",
    )
    assert [(record["id"], record["value"]) for record in one["pending"]] == sent
    entries = await postgres.query(
        "SELECT entry, value FROM {v} WHERE key = '\"a\"' AND entry <> '' "
        'ORDER BY entry COLLATE "C"',
        v="states",
    )
    timers = await postgres.query(
        'SELECT kind, tag FROM {v} WHERE key = \'"a"\' ORDER BY due, kind, tag COLLATE "C"',
        v="timers",
    )
    assert (one["entries_total"], one["timers_total"]) == (len(entries), len(timers))
    pages_of_entries = [[*one["entries"].items()]]
    while one["next_entry"] is not None:
        one = pages.json(KEY, key="a", entries_after=one["next_entry"])["one"]
        pages_of_entries.append([*one["entries"].items()])
    assert [len(page) for page in pages_of_entries] == [100, 100, len(entries) - 200]
    assert [*chain(*pages_of_entries)] == entries
    one = found["one"]
    seen = [(timer["kind"], timer["tag"]) for timer in one["timers"]]
    while one["next_timer"] is not None:
        after = msgspec.json.encode(one["next_timer"]).decode()
        one = pages.json(KEY, key="a", timers_after=after)["one"]
        seen += [(timer["kind"], timer["tag"]) for timer in one["timers"]]
    assert seen == timers
    text = pages.text(KEY, key='"a"')
    assert '"deep": [ 3 ]' in text
    assert "100 of 250" in text
    assert "100 of 230, the soonest first" in text
    assert f"owned by worker {owner.worker[:8]}" in text


async def test_links_lead_to_the_next_page(
    postgres: PostgresSite, owner: Owner, pages_of: PagesOf
) -> None:
    await write_key(postgres, owner)
    pages = pages_of(postgres.schema.url)
    page = pages.get(KEY, key="a").text

    def followed(name: str) -> Any:
        (part,) = [part for part in page.split("<a href=") if f">{name}</a>" in part]
        answer = pages.client.get("/api" + unescape(part.split('"')[1]))
        return answer.json()["one"]

    assert next(iter(followed("Further entries")["entries"])) == "seen/0100"
    assert followed("Further timers")["timers"][0]["tag"] == "tag 017"


async def test_a_page_beyond_the_last_timer_does_not_say_that_there_is_none(
    postgres: PostgresSite, owner: Owner, pages_of: PagesOf
) -> None:
    """Timers fire while somebody looks at the second page."""
    await write_key(postgres, owner)
    pages = pages_of(postgres.schema.url)
    after = msgspec.json.encode([START + 3600 * SECOND, "wall", "z"]).decode()
    one = pages.json(KEY, key="a", timers_after=after)["one"]
    assert (one["timers"], one["timers_total"], one["next_timer"]) == ([], 230, None)
    text = pages.text(KEY, key="a", timers_after=after)
    assert "There are no timers after this place: from the first one" in text
    assert "No timers are pending" not in text
    assert "No timers are pending" in pages.text(KEY, key="b")


async def test_many_entries_are_not_counted_to_the_end(
    postgres: PostgresSite, owner: Owner, pages_of: PagesOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write_key(postgres, owner)
    monkeypatch.setattr("millwheel.store.console.one_key.MOST_COUNTED", 200)
    pages = pages_of(postgres.schema.url)
    assert pages.json(KEY, key="a")["one"]["entries_total"] is None
    assert "of more than" in pages.text(KEY, key="a")


async def test_without_a_key_all_keys_of_the_step_come_by_cursor(
    postgres: PostgresSite, owner: Owner, pages_of: PagesOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = owner.commit()
    keys = [f"key {n}" for n in range(120)]
    commit.states = [
        owner.state(key, n, entry) for key in keys for n, entry in enumerate(("", "m/1"))
    ]
    await owner.write(commit)
    for key in ("key 0", "key 1"):
        await fold(postgres, owner, key)
    commit = owner.commit()
    commit.states = [owner.state(key := f"late {n}", n) for n in range(3)]
    await owner.write(commit)
    # Other computations have state in the same slots, and in others.
    await postgres.query(
        "INSERT INTO {s} SELECT (slot + n) %% 65536, c, key, entry, value, version FROM {s}, "
        "generate_series(0, 3) AS n, unnest(ARRAY[0, 30]) AS c WHERE computation = %s "
        "ON CONFLICT DO NOTHING",
        owner.computation,
        s="state",
    )
    wanted = {*keys, *(f"late {n}" for n in range(3))}
    pages = pages_of(postgres.schema.url)

    def listed() -> list[list[str]]:
        found = pages.json(KEY, step="count")
        portions = [[one["key"] for one in found["keys"]]]
        while found["next_key"] is not None:
            found = pages.json(KEY, step="count", keys_after=found["next_key"])
            portions.append([one["key"] for one in found["keys"]])
        return portions

    portions = listed()
    assert [len(portion) for portion in portions] == [50, 50, 23]
    everything = [*chain(*portions)]
    assert everything == sorted(wanted, key=lambda key: (encode_key(key)[1], encode_key(key)[0]))
    # The walk may stop between two pages; nothing is missing, and nothing comes twice.
    for steps in (7, 60, 61):
        monkeypatch.setattr(some_keys, "MOST_STEPS", steps)
        pages.server.stop()
        pages = pages_of(postgres.schema.url)
        assert [*chain(*listed())] == everything
    page = pages.get(KEY).text
    assert f"key={everything[0].replace(' ', '+')}" in page.replace("%22", "")


async def test_a_parked_key_says_what_stops_it(
    postgres: PostgresSite, owner: Owner, pages_of: PagesOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_page, "LISTED_LETTERS", 3)
    slot = encode_key("a")[1]
    for parked, key in (("failed", "a"), ("waiting", "a"), ("waiting", "a"), (None, "a"),
                        ("waiting", NEIGHBOUR)):  # fmt: skip
        await postgres.query(
            "INSERT INTO {d} (slot, computation, stream, key, value, place, error, traceback, "
            "attempts, stamp, parked) VALUES (%s, %s, 'words', %s, '1', 'here', 'it is bad', '', "
            "1, %s, %s)",
            slot,
            owner.computation,
            f'"{key}"',
            START,
            parked,
            d="dead_letter",
        )
    pages = pages_of(postgres.schema.url)
    found = pages.json(KEY, step="count", key="a")
    assert found["one"]["parked"] == {
        "since": from_micros(START).isoformat(), "waiting": 2, "letter": 1, "error": "it is bad"
    }  # fmt: skip
    assert [letter["id"] for letter in found["letters"]] == [4, 3, 2]
    (link,) = re.findall('href="([^"]*)">All of this key', pages.get(KEY, key="a").text)
    all_of_them = pages.client.get("/api" + unescape(link)).json()["letters"]
    assert [letter["id"] for letter in all_of_them] == [4, 3, 2, 1], "those that wait, too"
    text = pages.text(KEY, step="count", key="a")
    assert "dead letter 1 stops it, and 2 records behind it wait." in text
    html = pages.get(KEY, step="count", key="a").text
    assert ("do/retry?ids=1" in html, "do/discard?ids=1" in html) == (True, True)
    found = pages.json(KEY, step="count", key=NEIGHBOUR)
    assert (found["one"]["parked"]["letter"], found["one"]["parked"]["waiting"]) == (None, 1)
    assert "its waiting records are being processed" in pages.text(KEY, key=NEIGHBOUR)
    assert pages.json(KEY, step="count", key="b")["one"]["parked"] is None


async def test_the_history_has_what_is_stored_the_newest_first(
    postgres: PostgresSite, owner: Owner, pages_of: PagesOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(3):
        commit = owner.commit()
        commit.states = [owner.state("a", {"n": n}), owner.state(NEIGHBOUR, {"n": "its own"})]
        if n == 1:
            commit.states += [owner.state("a", 5, "seen/x")]
            commit.timers = [owner.timer("a", START, "close")]
            commit.productions = [
                owner.production("a", {"v": 1}),
                owner.production(NEIGHBOUR, {"v": 2}),
            ]
        if n == 2:
            commit.states = [owner.state("a", None), owner.state("a", None, "seen/x")]
            commit.timers = [owner.timer("a", None, "close")]
        await owner.write(commit)
    await fold(postgres, owner, "a")
    pages = pages_of(postgres.schema.url)
    pages.carry_out("wheel", "set_state", step="count", key="a", value='{"n": 9}', reason="mine")
    history = pages.json(KEY, key="a")["history"]
    assert [event["happened"] for event in history["events"][:3]] == [
        "asked", "state removed", "entry removed"
    ]  # fmt: skip
    told = {(event["happened"], event["value"], event["tag"], event["by"])
            for event in history["events"]}  # fmt: skip
    assert told == {
        ("asked", '{"value": {"n": 9}}', "", "ann"),
        ("state removed", None, "", ""),
        ("entry removed", None, "", ""),
        ("timer ended", None, "close", ""),
        ("record sent to it", '{"v":1}', "", "count, stream totals"),
        ("entry written", "5", "", ""),
        ("timer set", None, "close", ""),
        ("state written", '{"n": 1}', "", ""),
        ("state written", '{"n": 0}', "", ""),
    }
    times = [event["at"] for event in history["events"]]
    assert times == sorted(times, reverse=True)
    assert (history["is_whole"], history["has_more"]) == (True, False)
    assert "All commits of its key interval were searched." in pages.text(KEY, key="a")
    monkeypatch.setattr(key_history, "MOST_COMMITS", 1)
    monkeypatch.setattr(key_history, "MOST_EVENTS", 2)
    fewer = pages_of(postgres.schema.url)
    history = fewer.json(KEY, key="a")["history"]
    assert len(history["events"]) == 2
    assert (history["is_whole"], history["has_more"]) == (False, True)
    text = fewer.text(KEY, key="a")
    assert "there are older ones" in text
    assert "older ones are dropped when they are folded" in text


@pytest.mark.parametrize(
    ("sender", "reader", "missing"),
    [
        ({}, {}, ["lines"]),
        ({"productions": "weak"}, {}, ["lines", "other"]),
        ({}, {"delivery": "at_most_once"}, ["lines", "count", "other"]),
    ],
)
async def test_the_history_says_whose_records_it_has_not(
    postgres: PostgresSite,
    pages_of: PagesOf,
    sender: dict[str, str],
    reader: dict[str, str],
    missing: list[str],
) -> None:
    nodes = {**GRAPH["nodes"], "other": sender}
    graph = {"nodes": {**nodes, "count": {**nodes["count"], **reader}}}
    step = replace(COUNT, upstream=["lines", "count", "other"])
    other = replace(COUNT, name="other")
    await deploy(postgres.store, graph=graph, count=step, more=(other,))
    pages = pages_of(postgres.schema.url)
    assert pages.json(KEY, step="count", key="a")["history"]["unstored"] == missing
    words = f"come straight from {', '.join(missing)} are not stored"
    assert words in pages.text(KEY, step="count", key="a")


async def test_a_wrong_step_or_key_is_refused_in_words(
    postgres: PostgresSite, owner: Owner, pages_of: PagesOf
) -> None:
    pages = pages_of(postgres.schema.url)
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"key": "true"}, "true cannot be a key"),
        ({"step": "cuont", "key": "a"}, "no step 'cuont' with keys"),
        ({"step": "cuont"}, "no step 'cuont' with keys"),
        ({"step": "lines", "key": "file lines.txt"}, "no step 'lines' with keys"),
        ({"key": "a", "timers_after": "[1]"}, "wrong place in timers_after"),
        ({"key": "a", "timers_after": '[1, "wall", "\\u0000"]'}, "wrong place in timers_after"),
        ({"keys_after": '[1, "\\u0000"]'}, "wrong place in keys_after"),
    )
    for filters, words in wrong:
        answer = pages.get(KEY, **filters)
        assert answer.status_code == 400
        assert words in text_of(answer)
    assert "The text 13 would be another key" in pages.text(KEY, key="13")


async def test_nothing_of_a_key_is_shown_if_it_is_to_be_hidden(
    postgres: PostgresSite, owner: Owner, pages_of: PagesOf
) -> None:
    await write_key(postgres, owner)
    pages = pages_of(postgres.schema.url, redact=True)
    either: tuple[dict[str, Any], ...] = ({}, {"key": '"a"'})
    for filters in either:
        page = pages.get(KEY, **filters)
        assert page.status_code == 200
        for secret in ("deep", "seen/0", "tag 0", "&#34;v&#34;"):
            assert secret not in page.text
            assert secret not in pages.get(f"/api{KEY}", **filters).text
    assert "deep" not in pages.foresee("wheel", "set_state", step="count", key="a", merge='{"n":1}')


async def test_viewers_who_may_not_mend_see_no_changes(
    postgres: PostgresSite, owner: Owner, pages_of: PagesOf
) -> None:
    await write_key(postgres, owner)
    menders, viewers = pages_of(postgres.schema.url), pages_of(postgres.schema.url, LOOKS)
    for verb in ("set_state", "delete_state", "fire_timer", "cancel_timer"):
        assert f"/do/{verb}" in menders.get(KEY, key="a").text
        assert f"/do/{verb}" not in viewers.get(KEY, key="a").text
        assert viewers.get(f"/pipelines/wheel/do/{verb}", step="count", key="a").status_code == 403
