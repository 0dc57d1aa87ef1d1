"""*What failed?*, the download of letters, and the verbs that mend them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from html import unescape
from typing import Any

import msgspec
import psycopg
import pytest

from millwheel.core.codec import encode_key
from millwheel.store.console import kept_letters
from millwheel.ui.access import Level, Viewer, ViewerAccess
from millwheel.ui.pages import letters_page as letters
from millwheel.ui.pages.letters_page import LISTED
from tests.support.seen_pages import SeenPages, text_of
from tests.support.store_sites import SECOND, START, Owner, PostgresSite

pytestmark = pytest.mark.newest

PagesOf = Callable[..., SeenPages]
PAGE = "/pipelines/wheel/letters"


@pytest.fixture
async def owner(postgres: PostgresSite) -> Owner:
    """Of a pipeline with six letters: 1 stops a parked key, in which 2 and 3 wait; 4 and 5 are of
    other keys; 6 is a row that could not be read."""
    made = await Owner.take(postgres.store)
    first = made.dead_letter(1)._replace(error="ValueError: 17 is wrong", traceback="in the code")
    other = made.dead_letter(2)._replace(error="ValueError: 18 is wrong")
    waiting = first._replace(parked="waiting", error="it waits", value='{"n": 2}')
    commit = made.commit(made.interval_of("key 1"))
    commit.dead_letters = [
        first._replace(parked="failed", watermark=0, hold=START, value='{"n": 1}'),
        waiting,
        waiting._replace(ts=START - SECOND, value='{"n": 3}'),
        other._replace(ts=START - SECOND, value='{"secret": 4}'),
        _at("key 5", first._replace(error="KeyError: 'x'", value='{"n": 5}')),
        first._replace(key=None, error="no JSON", value="{", stream="words"),
    ]
    await made.write(commit)
    for interval in made.intervals:
        await made.write(made.commit(interval, low_watermark=START))
    return made


def _at(key: str, letter: Any) -> Any:
    key_text, slot = encode_key(key)
    return letter._replace(key=key_text, slot=slot)


@pytest.fixture
def pages(owner: Owner, pages_of: PagesOf, postgres: PostgresSite) -> SeenPages:
    return pages_of(postgres.schema.url)


async def many(postgres: PostgresSite, count: int, value: str = '"v"') -> None:
    await postgres.query(
        "INSERT INTO {d} (slot, computation, stream, key, value, place, error, traceback, "
        "attempts, stamp) SELECT 1, c.id, 'words', to_json('k' || n %% 7)::text, %s, 'here', "
        "'ValueError: ' || n, '', 1, n FROM generate_series(1, %s) AS n, {c} AS c "
        "WHERE c.name = 'count'",
        value,
        count,
        d="dead_letter",
        c="computation",
    )


def numbers(found: Any) -> list[int]:
    return [one["id"] for one in found["letters"]]


# -- the page


async def test_letters_are_grouped_by_error_without_its_numbers(
    pages: SeenPages, postgres: PostgresSite
) -> None:
    found = pages.json(PAGE)
    kinds = {(one["error"], one["letters"], one["keys"]) for one in found["groups"]["kinds"]}
    rows = await postgres.query(
        "SELECT regexp_replace(error, '[0-9]+', 'N', 'g'), count(*), count(DISTINCT key) FROM {d} "
        "WHERE parked IS DISTINCT FROM 'waiting' GROUP BY 1",
        d="dead_letter",
    )
    assert kinds == set(rows)
    assert ("ValueError: N is wrong", 2, 2) in kinds
    assert (found["groups"]["groups"], found["groups"]["letters"]) == (3, 4)
    assert numbers(found) == [6, 5, 4, 1]
    text = pages.text(PAGE)
    assert "4 dead letters, 3 groups by error" in text
    assert "ValueError: N is wrong" in text


def test_letters_are_grouped_by_key(pages: SeenPages) -> None:
    found = pages.json(PAGE, group="key", waiting="true")["groups"]
    by_key = {one["key"]: one for one in found["keys"]}
    assert by_key["key 1"]["letters"] == 3
    assert by_key["key 1"]["waiting"] == 2
    assert by_key["key 1"]["newest"] == 3
    assert by_key["key 1"]["error"] == "it waits"
    assert set(by_key) == {"key 1", "key 2", "key 5", None}
    assert "a row without a key" in pages.text(PAGE, group="key")


FILTERS: tuple[tuple[dict[str, Any], list[int]], ...] = (
    ({"step": "count"}, [6, 5, 4, 1]),
    ({"step": "lines"}, []),
    ({"key": "key 1"}, [1]),
    ({"key": '"key 1"', "waiting": "true"}, [3, 2, 1]),
    ({"error": "IS WRONG"}, [4, 1]),
    ({"error": "is wrong", "key": "key 2"}, [4]),
    ({"before": "5"}, [4, 1]),
    ({"group": "none"}, [6, 5, 4, 1]),
)


def test_filters_stand_in_the_address(pages: SeenPages) -> None:
    for filters, wanted in FILTERS:
        assert numbers(pages.json(PAGE, **filters)) == wanted, filters
        exported = pages.get(f"{PAGE}.jsonl", **filters).text.splitlines()
        if "before" not in filters:
            assert [msgspec.json.decode(line)["id"] for line in exported] == wanted[::-1]


def test_wrong_filters_say_what_is_wrong(pages: SeenPages) -> None:
    assert "no computation 'cound'" in text_of(pages.get(PAGE, step="cound"))
    assert "cannot be a key" in text_of(pages.get(PAGE, key="1.5"))
    assert "no dead letter 99" in text_of(pages.get(PAGE, letter=99))
    assert pages.get(f"{PAGE}.jsonl", step="cound").status_code == 400
    assert pages.get("/pipelines/wheel/log.jsonl").status_code == 404
    assert pages.get("/pipelines/nope/letters.jsonl").status_code == 404
    assert "No dead letter matches" in pages.text(PAGE, error="no such text")


async def test_a_cursor_leads_through_all_letters_while_others_come(
    pages: SeenPages, postgres: PostgresSite
) -> None:
    await many(postgres, 2 * LISTED + 10)
    known = await postgres.query(
        "SELECT id FROM {d} WHERE parked IS DISTINCT FROM 'waiting' ORDER BY id DESC",
        d="dead_letter",
    )
    seen: list[int] = []
    before: int | None = None
    while True:
        filters: dict[str, Any] = {} if before is None else {"before": before}
        found = pages.json(PAGE, **filters)
        assert (found["groups"] is None) == (found["parked"] is None) == (before is not None)
        seen += numbers(found)
        before = found["next_before"]
        if before is None:
            break
        assert f"before={before}" in pages.get(PAGE, **filters).text
        await many(postgres, 1)
    assert seen == [id_ for (id_,) in known]


async def test_parked_keys_stand_with_what_waits_in_them(
    pages: SeenPages, postgres: PostgresSite
) -> None:
    parked = pages.json(PAGE)["parked"]
    (key,) = parked["keys"]
    ((waiting, oldest),) = await postgres.query(
        "SELECT waiting, oldest FROM {v} WHERE key = to_jsonb('key 1'::text)", v="parked_keys"
    )
    assert (key["key"], key["failed"], key["waiting"]) == ("key 1", 1, waiting)
    assert key["oldest"] == oldest.isoformat()
    assert [(one["id"], one["value"]) for one in key["first_records"]] == [
        (2, '{"n": 2}'), (3, '{"n": 3}'),
    ]  # fmt: skip
    assert (parked["total"], parked["waiting"]) == (1, 2)
    assert "1 parked key" in pages.text(PAGE)
    assert pages.json(PAGE, error="KeyError")["parked"]["keys"] == []
    assert pages.json(PAGE, key="key 2")["parked"]["keys"] == []
    assert pages.json(PAGE, step="lines")["parked"]["keys"] == []


def test_a_letter_stands_with_what_else_its_key_has(pages: SeenPages) -> None:
    one = pages.json(PAGE, letter=1)["one"]
    assert one["letter"]["traceback"] == "in the code"
    assert [each["id"] for each in one["same_key"]["letters"]] == [3, 2]
    assert one["same_key"]["status"]["key"] == "key 1"
    text = pages.text(PAGE, letter=1)
    assert "in the code" in text
    assert "Its key stands still until you retry or discard this letter" in text
    assert "No key owns it" in pages.text(PAGE, letter=6)
    assert pages.json(PAGE, letter=6)["one"]["same_key"] is None
    links = pages.get(PAGE, letter=6).text
    assert "do/retry" not in links
    assert "do/discard?ids=6" in links


async def test_links_lead_to_the_letters_that_are_counted(
    pages: SeenPages, postgres: PostgresSite
) -> None:
    """Whatever characters a key has."""
    odd = "\"\u202e<a b='&'>\""
    await postgres.query("UPDATE {d} SET key = %s WHERE id <= 3", odd, d="dead_letter")

    def linked(begin: str, **filters: Any) -> list[list[int]]:
        found = re.findall(rf'href="({begin}\?[^"]*key=[^"]*)"', pages.get(PAGE, **filters).text)
        return [numbers(pages.client.get("/api" + unescape(link)).json()) for link in found]

    assert linked(PAGE, group="key", waiting="true") == [[3, 2, 1], [3, 2, 1], [5], [4]]
    assert linked(PAGE, group="key") == [[3, 2, 1], [5], [4], [1]]
    assert linked("/pipelines/wheel/key", letter=1) == [[3, 2, 1]]


async def test_long_texts_say_that_they_are_cut(pages: SeenPages, postgres: PostgresSite) -> None:
    await postgres.query(
        "UPDATE {d} SET value = repeat('v', 301), error = repeat('e', 300), "
        "traceback = repeat('t', 19990) || 'the cause' WHERE id IN (2, 5)",
        d="dead_letter",
    )
    text = pages.text(PAGE)
    assert text.count("v" * 300 + "…") == 2, "in the list, and behind the parked key"
    assert "e" * 300 in text
    assert "e…" not in text
    assert "the cause" in pages.text(PAGE, letter=5)


async def test_records_that_are_being_processed_have_not_failed(
    pages: SeenPages, postgres: PostgresSite
) -> None:
    await postgres.query("DELETE FROM {d} WHERE parked IS DISTINCT FROM 'waiting'", d="dead_letter")
    text = pages.text(PAGE)
    assert "the records that wait in them are being processed" in text
    assert "Nothing has failed" not in text


def test_of_the_records_that_wait_the_first_are_shown(
    pages: SeenPages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_letters, "FIRST_RECORDS", 1)
    (key,) = pages.json(PAGE)["parked"]["keys"]
    assert [one["id"] for one in key["first_records"]] == [2]
    assert key["waiting"] == 2


async def test_a_letter_of_a_removed_step_has_no_state(
    pages: SeenPages, postgres: PostgresSite
) -> None:
    await postgres.query(
        "INSERT INTO {c} (id, name, kind, version, state, upstream, paused, removed_at) OVERRIDING "
        "SYSTEM VALUE VALUES (99, 'gone', 'computation', 1, '{{}}', '[]', false, now())",
        c="computation",
    )
    await postgres.query("UPDATE {d} SET computation = 99 WHERE id = 4", d="dead_letter")
    assert pages.json(PAGE, letter=4)["one"]["same_key"] == {"letters": [], "status": None}
    assert "Its step was removed" in pages.text(PAGE, letter=4)
    assert numbers(pages.json(PAGE, step="gone")) == [4]
    assert "of computations that were removed: 1" in pages.foresee("wheel", "retry", ids=4)


async def test_long_values_are_cut_in_the_list_only(
    pages: SeenPages, postgres: PostgresSite
) -> None:
    long = msgspec.json.encode("x" * 5000).decode()
    await postgres.query("UPDATE {d} SET value = %s WHERE id = 5", long, d="dead_letter")
    listed = next(one for one in pages.json(PAGE)["letters"] if one["id"] == 5)
    assert listed["value"] == long[: letters.SHOWN_CHARACTERS]
    assert pages.json(PAGE, letter=5)["one"]["letter"]["value"] == long
    (exported,) = pages.get(f"{PAGE}.jsonl", error="KeyError").text.splitlines()
    assert msgspec.json.decode(exported)["value"] == long


# -- the download


async def test_a_download_comes_in_portions_and_ends_where_it_began(
    pages: SeenPages, postgres: PostgresSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Letters of later times are not in it, and no snapshot is held while it stands still."""
    monkeypatch.setattr(letters, "PORTION", 10)
    await many(postgres, 200, msgspec.json.encode("x" * 100_000).decode())
    wanted = await postgres.query(
        "SELECT id FROM {d} WHERE parked IS DISTINCT FROM 'waiting' ORDER BY id", d="dead_letter"
    )
    with pages.client.stream("GET", f"{PAGE}.jsonl") as answer:
        assert answer.headers["content-disposition"].startswith("attachment")
        lines = answer.iter_lines()
        found = [msgspec.json.decode(next(lines))["id"]]
        await many(postgres, 5)
        until_no_look_is_open(postgres)
        found += [msgspec.json.decode(line)["id"] for line in lines]
    assert found == [id_ for (id_,) in wanted]


def test_a_portion_of_large_values_ends_early(
    pages: SeenPages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand values of a megabyte would end the process of the pages."""
    read: list[int] = []
    portion = kept_letters.KeptLetters.portion

    def counted(*args: Any, **options: Any) -> Any:
        found = portion(*args, **options)
        read.append(len(found))
        return found

    monkeypatch.setattr(kept_letters.KeptLetters, "portion", counted)
    for most_bytes, portions in ((1, [1, 1, 1, 1, 0]), (9, [2, 2, 0]), (1000, [4, 0])):
        monkeypatch.setattr(letters, "PORTION_BYTES", most_bytes)
        lines = pages.get(f"{PAGE}.jsonl").text.splitlines()
        assert [msgspec.json.decode(line)["id"] for line in lines] == [1, 4, 5, 6]
        assert read == portions
        read.clear()


def until_no_look_is_open(postgres: PostgresSite) -> None:
    """The server writes until the connection takes no more; then there must be none."""
    deadline = time.monotonic() + 20
    with psycopg.connect(postgres.schema.url, autocommit=True) as connection:
        while True:
            row = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                "AND application_name = 'millwheel look'"
            ).fetchone()
            if row == (0,):
                return
            assert time.monotonic() < deadline, row
            time.sleep(0.05)


# -- changes


def test_a_retry_says_what_it_would_do(pages: SeenPages) -> None:
    text = pages.foresee("wheel", "retry", all="true")
    assert "4 dead letters match" in text
    assert "rows of a source that could not be read: 1 of them" in text
    assert "2 records wait behind them in parked keys, and follow by themselves" in text
    assert "behind the low watermark of count: 1 of them" in text
    assert "a reader that drops late records will drop them" in text
    assert "asks for 3;" in text
    assert "at most 2 a second: 2 seconds" in pages.foresee("wheel", "retry", all="true", rate="2")


def test_a_change_of_letters_names_them_or_all(pages: SeenPages) -> None:
    both = {"all": "true", "key": "key 1"}
    for verb, other in (("retry", {"rate": "5"}), ("discard", {"up_to": "3"})):
        forms: tuple[dict[str, Any], ...] = ({}, both, other)
        for form in forms:
            assert f"say which dead letters to {verb}" in pages.foresee("wheel", verb, **form)
            refused = pages.carry_out("wheel", verb, reason="a test", **form)
            assert refused.status_code == 400
    assert numbers(pages.json(PAGE)) == [6, 5, 4, 1]
    assert pages.json("/pipelines/wheel/log")["batches"] == []


async def test_a_retry_asks_the_owners_of_the_letters(
    pages: SeenPages, postgres: PostgresSite
) -> None:
    done = pages.carry_out("wheel", "retry", error="is wrong", rate="0.5", reason="mended")
    assert done.status_code == 303
    rows = await postgres.query(
        "SELECT batch, actor, reason, verb, letter, extract(epoch FROM due_at - asked_at)::int "
        "FROM {r} ORDER BY letter",
        r="request",
    )
    batch = rows[0][0]
    assert done.headers["location"] == f"/pipelines/wheel/log?batch={batch}"
    assert rows == [
        (batch, "ann", "mended", "retry", 1, 0), (batch, "ann", "mended", "retry", 4, 2),
    ]  # fmt: skip
    assert "being retried already: 2 of them" in pages.foresee("wheel", "retry", ids="1, 4")
    text = pages.foresee("wheel", "discard", ids="1 4")
    assert "being retried: 2 of them, which stay" in text
    assert "owners of the keys" not in text
    again = pages.carry_out("wheel", "retry", ids="1 4", reason="mended")
    assert "there is nothing to ask for" in text_of(again)
    for wrong in ("0", "-1", "nan", "inf"):
        refused = pages.carry_out("wheel", "retry", ids="5", rate=wrong, reason="mended")
        assert refused.status_code == 400
    for wrong in ("four", "9" * 19, "9" * 5000):
        assert "give numbers of dead letters" in pages.foresee("wheel", "retry", ids=wrong)


async def test_an_edit_shows_the_old_value_and_the_log_keeps_it(
    pages: SeenPages, postgres: PostgresSite
) -> None:
    form = pages.get("/pipelines/wheel/do/edit", letter=4).text
    assert "&#34;secret&#34;: 4" in form, "the field has the old value"
    assert "takes JSON" in pages.foresee("wheel", "edit", letter=4, value="{")
    none = pages.carry_out("wheel", "edit", letter=4, value="", reason="a test")
    assert "give the record another value" in text_of(none)
    assert pages.carry_out("wheel", "edit", letter=4, value="{", reason="x").status_code == 400
    done = pages.carry_out("wheel", "edit", letter=4, value='{"n": 7}', reason="a typo")
    assert done.status_code == 303
    (row,) = await postgres.query("SELECT letter, payload FROM {r}", r="request")
    assert row == (4, {"value": {"n": 7}, "was": {"secret": 4}})
    log = pages.json("/pipelines/wheel/log", batch=done.headers["location"].rpartition("=")[2])
    assert log["progress"]["before"] == {"value": {"secret": 4}}
    assert "being retried already" in text_of(
        pages.carry_out("wheel", "edit", letter=4, value="1", reason="again")
    )


async def test_what_has_no_value_is_not_edited(pages: SeenPages, postgres: PostgresSite) -> None:
    await postgres.query("UPDATE {d} SET stream = 'timer' WHERE id = 5", d="dead_letter")
    for letter, why in ((6, "no key owns it"), (5, "is a timer"), (2, "only waits")):
        assert why in pages.foresee("wheel", "edit", letter=letter)
        refused = pages.carry_out("wheel", "edit", letter=letter, value="1", reason="x")
        assert refused.status_code == 400
    assert await postgres.query("SELECT FROM {r}", r="request") == []


async def test_a_discard_leaves_what_is_retried_and_what_came_later(
    pages: SeenPages, postgres: PostgresSite
) -> None:
    pages.carry_out("wheel", "retry", ids="4", reason="first")
    text = pages.foresee("wheel", "discard", all="true")
    assert "4 dead letters match" in text
    assert "deletes 3 dead letters for good" in text
    assert "being retried: 1 of them, which stay" in text
    assert "withdrawn and may have begun: 1 of them. The owners" in text
    form = pages.get("/pipelines/wheel/do/discard", all="true").text
    assert "letters.jsonl" in form
    assert "this cannot be undone" in form
    assert 'name="up_to" value="6"' in form
    await many(postgres, 1)
    done = pages.carry_out("wheel", "discard", all="true", up_to="6", reason="old")
    assert done.status_code == 303
    left = await postgres.query("SELECT id FROM {d} ORDER BY id", d="dead_letter")
    assert [id_ for (id_,) in left][:4] == [1, 2, 3, 4], "owners delete those of parked keys"
    assert len(left) == 5
    asked = await postgres.query(
        "SELECT verb, letter, payload, outcome FROM {r} WHERE verb = 'discard' ORDER BY id",
        r="request",
    )
    assert asked == [
        ("discard", None, {"letters": [5, 6]}, "done"), ("discard", 1, None, None),
    ]  # fmt: skip


def test_a_discard_of_what_is_not_there_deletes_nothing(pages: SeenPages) -> None:
    assert "no dead letter 2, 99" in pages.foresee("wheel", "discard", ids="2 5 99")
    refused = pages.carry_out("wheel", "discard", ids="5 99", reason="x")
    assert refused.status_code == 400
    assert numbers(pages.json(PAGE)) == [6, 5, 4, 1]
    assert "0 dead letters match" in pages.foresee("wheel", "discard", error="no such")
    none = pages.carry_out("wheel", "discard", error="no such", reason="x")
    assert "nothing was discarded" in text_of(none)
    assert "deletes 1 dead letter for good" in pages.foresee(
        "wheel", "discard", ids="2", waiting="true"
    )


async def test_a_record_or_row_is_set_aside(pages: SeenPages, postgres: PostgresSite) -> None:
    item = f"record:{1:032x}"
    assert "fill in its key" in pages.foresee("wheel", "set_aside", step="count", item=item)
    huge = pages.foresee("wheel", "set_aside", step="lines", item="9" * 5000)
    assert "is no number of a row" in huge
    assert "names no record" in pages.foresee(
        "wheel", "set_aside", step="count", item="7", key="key 1"
    )
    assert "there is no injector 'count'" in pages.foresee(
        "wheel", "set_aside", step="count", item="7"
    )
    assert "there is no computation 'lines'" in pages.foresee(
        "wheel", "set_aside", step="lines", item=item, key="key 1"
    )
    assert "becomes a dead letter" in pages.foresee(
        "wheel", "set_aside", step="count", item=item, key="key 1"
    )
    forms: tuple[dict[str, Any], ...] = (
        {"step": "count", "item": item, "key": "key 1"}, {"step": "lines", "item": "7"},
    )  # fmt: skip
    for form in forms:
        assert pages.carry_out("wheel", "set_aside", reason="stuck", **form).status_code == 303
    rows = await postgres.query("SELECT verb, key, payload FROM {r} ORDER BY id", r="request")
    assert rows == [
        ("set_aside", '"key 1"', {"item": item}),
        ("set_aside", '"file lines.txt"', {"row": 7}),
    ]
    html = pages.get("/pipelines/wheel/log").text
    assert "key?step=count" in html
    assert "key?step=lines" not in html, "a partition of a source is no key"


def test_a_form_that_was_just_opened_has_no_mistake(pages: SeenPages) -> None:
    opened = pages.get("/pipelines/wheel/do/set_aside").text
    assert "as the error names it" in opened
    assert "alert" not in opened
    assert "`step`" in pages.foresee("wheel", "set_aside", item="7")
    assert "`step`" in text_of(pages.carry_out("wheel", "set_aside", reason="stuck"))


def test_who_may_look_sees_no_buttons(
    pages: SeenPages, pages_of: PagesOf, postgres: PostgresSite
) -> None:
    looking = pages_of(postgres.schema.url, ViewerAccess(guests=Viewer("bob", Level.LOOK)))
    given: tuple[dict[str, Any], ...] = ({}, {"letter": 1})
    for filters in given:
        assert "do/" not in looking.get(PAGE, **filters).text
        assert "do/" in pages.get(PAGE, **filters).text
    assert looking.get(f"{PAGE}.jsonl").status_code == 200
    nobody = pages_of(postgres.schema.url, ViewerAccess(look_tokens=("t",)))
    assert nobody.get(f"{PAGE}.jsonl").status_code == 401


def test_redacted_pages_show_no_key_and_no_value(
    pages: SeenPages, pages_of: PagesOf, postgres: PostgresSite
) -> None:
    pages.carry_out("wheel", "edit", letter=4, value='{"secret": 5}', reason="a test")
    redacted = pages_of(postgres.schema.url, redact=True)
    asked: tuple[tuple[str, dict[str, Any]], ...] = (
        (PAGE, {}), (PAGE, {"group": "key"}), (PAGE, {"letter": 1}), (PAGE, {"letter": 4}),
        (f"{PAGE}.jsonl", {}), (f"/api{PAGE}", {}), (f"/api{PAGE}", {"letter": 4}),
        ("/pipelines/wheel/do/edit", {"letter": 4}), ("/pipelines/wheel/log", {}),
        ("/pipelines/wheel/log", {"batch": 1}), ("/api/pipelines/wheel/log", {"batch": 1}),
    )  # fmt: skip
    for path, filters in asked:
        answer = redacted.get(path, **filters)
        assert answer.status_code == 200
        for secret in ("key 1", "key 2", "key+1", "secret&", '"secret', "is wrong", '"n"'):
            assert secret not in answer.text, (path, filters, secret)
