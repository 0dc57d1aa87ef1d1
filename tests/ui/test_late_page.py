"""*Why is it late?*: from a step to what holds its low watermark, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millwheel.core.model import Key
from millwheel.store.console.held_watermarks import HolderRoot
from millwheel.ui.remedies import INCIDENTS, LateFacts, remedy_for
from tests.support.described_graphs import LINES_TO_COUNTS
from tests.support.product import ROOT
from tests.support.seen_pages import SeenPages
from tests.support.store_sites import SECOND, START, Owner, PostgresSite, deploy

pytestmark = pytest.mark.newest

PagesOf = Callable[..., SeenPages]

AHEAD = START + 60 * SECOND
LATE = "/pipelines/wheel/late"
STRANGE: Key = "a: record of stream s for lines, not acknowledged, id <b>7</b>: dead letter 99"
"""A key that reads as another holder does."""


@pytest.fixture
async def owner(postgres: PostgresSite) -> Owner:
    """Of all intervals; the injector is a minute further than the tests' steps."""
    made = await Owner.take(postgres.store, await deploy(postgres.store, graph=LINES_TO_COUNTS))
    await made.write(made.commit(made.injector, input_watermark=AHEAD, low_watermark=AHEAD))
    return made


@pytest.fixture
def pages(pages_of: PagesOf, owner: Owner, postgres: PostgresSite) -> SeenPages:
    return pages_of(postgres.schema.url)


async def held(owner: Owner, **parts: list[Any]) -> None:
    """Write a commit with these parts; the input is further than they hold."""
    commit = owner.commit(input_watermark=AHEAD, low_watermark=START)
    for name, part in parts.items():
        setattr(commit, name, part)
    await owner.write(commit)


async def root(postgres: PostgresSite) -> tuple[list[str], str, float]:
    """What the view says at the same moment: path, root, and the seconds of its age."""
    ((path, what, age),) = await postgres.query(
        "SELECT path, root, extract(epoch FROM age)::float8 FROM {v} WHERE computation = 'count'",
        v="watermark_holders",
    )
    return path, what, age


async def test_a_timer_that_is_due(owner: Owner, pages: SeenPages, postgres: PostgresSite) -> None:
    await held(owner, timers=[owner.timer(STRANGE, START + 5, "alarm")])
    path, what, age = await root(postgres)
    found = pages.json(LATE, step="count")
    assert [one["name"] for one in found["path"]] == path == ["count"]
    assert found["root"]["what"] == what
    assert found["age_seconds"] == pytest.approx(age, abs=10)
    assert (found["root"]["kind"], found["root"]["tag"]) == ("timer", "alarm")
    assert found["root"]["key"] == STRANGE
    (cure,) = found["remedy"]["cures"]
    assert cure["verb"] == "cancel_timer"
    assert cure["filters"] == {
        "step": "count", "key": msgspec.json.encode(STRANGE).decode(), "tag": "alarm",
        "kind": "watermark",
    }  # fmt: skip
    commands = [f"{one['command']} {one['value']}" for one in found["remedy"]["commands"]]
    assert commands[-1].startswith("millwheel timers cancel --pipeline wheel count '\"a: record")
    html = pages.get(LATE, step="count").text
    assert "/pipelines/wheel/key?step=count&amp;key=%22a%3A+record" in html
    assert "<b>7</b>" not in html


async def test_a_hold_of_user_code_has_no_cure_by_a_button(owner: Owner, pages: SeenPages) -> None:
    await held(owner, timers=[owner.timer("a", START + 5, "until paid", kind="hold")])
    found = pages.json(LATE, step="count")
    assert (found["root"]["kind"], found["root"]["tag"]) == ("hold", "until paid")
    assert found["remedy"]["cures"] == []
    assert "ctx.hold_watermark" in pages.text(LATE, step="count")


async def test_a_record_on_its_way_leads_to_the_step_that_reads_it(
    owner: Owner, pages: SeenPages
) -> None:
    commit = owner.commit(owner.interval_of(STRANGE), input_watermark=AHEAD, low_watermark=START)
    sent = owner.production(STRANGE, 1, interval=owner.interval_of(STRANGE))
    commit.productions = [sent]
    await owner.write(commit)
    found = pages.json(LATE, step="count")
    of = found["root"]
    assert (of["kind"], of["step"], of["sender"], of["stream"]) == (
        "record", "count", "count", "totals",
    )  # fmt: skip
    assert of["key"] == STRANGE
    assert re.fullmatch(r"[0-9a-f-]{36}", of["record_id"])
    assert found["reader"]["name"] == "count"
    assert found["remedy"]["incident"] == "A computation is slow"


async def test_a_parked_key_leads_to_its_letter(
    owner: Owner, pages: SeenPages, postgres: PostgresSite
) -> None:
    letter = owner.dead_letter(1)._replace(parked="failed", watermark=0, hold=START)
    await held(owner, dead_letters=[letter])
    ((number,),) = await postgres.query("SELECT id FROM {d}", d="dead_letter")
    found = pages.json(LATE, step="count")
    assert (found["root"]["kind"], found["root"]["letter"]) == ("parked", number)
    assert f"dead-letters retry {number}" in pages.text(LATE, step="count")


async def test_a_row_that_is_not_acknowledged(owner: Owner, pages: SeenPages) -> None:
    position = msgspec.json.encode({"held_by": 12, "since": START})
    commit = owner.commit(
        owner.injector, input_watermark=AHEAD, low_watermark=AHEAD, position=position
    )
    await owner.write(commit)
    found = pages.json(LATE, step="lines")
    assert (found["root"]["kind"], found["root"]["row"]) == ("row", "12")
    assert found["root"]["source"] == "file lines.txt"


async def test_a_paused_injector_is_the_root_of_the_steps_behind_it(
    owner: Owner, pages: SeenPages, postgres: PostgresSite
) -> None:
    await owner.write(owner.commit(low_watermark=AHEAD, input_watermark=AHEAD))
    await postgres.pause("lines")
    found = pages.json(LATE, step="count")
    path, _, _ = await root(postgres)
    assert [one["name"] for one in found["path"]] == path == ["count", "lines"]
    assert found["root"]["kind"] == "paused"
    (cure,) = found["remedy"]["cures"]
    assert (cure["verb"], cure["filters"]) == ("resume", {"step": "lines"})
    assert "do/resume?step=lines" in pages.get(LATE, step="count").text
    assert "resumes" in pages.foresee("wheel", cure["verb"], **cure["filters"])


async def test_without_a_worker_the_remedy_is_a_worker(
    owner: Owner, pages: SeenPages, postgres: PostgresSite
) -> None:
    await held(owner, timers=[owner.timer("a", START + 5)])
    await postgres.query("UPDATE {w} SET lease_until = now() - interval '1 s'", w="worker")
    found = pages.json(LATE, step="count")
    assert found["root"]["is_owned"] is False
    assert found["remedy"]["incident"] == "A worker is gone"
    assert "millwheel worker" in pages.text(LATE, step="count")


async def test_windows_that_are_due_next(
    owner: Owner, pages: SeenPages, postgres: PostgresSite
) -> None:
    """Those that were folded, changed since, and cancelled since."""
    minute = 60 * SECOND
    timers = [
        owner.timer(key, START + end * minute - 1, str(START + (end - 1) * minute))
        for end in (3, 1, 2)
        for key in ("a", "b", "c")
    ]
    await held(owner, timers=timers)
    for link in [owner.links[row.id] for row in owner.intervals]:
        assert await postgres.store.fold(link.interval_id, link.sequencer, 0, link.n)
    gone = [owner.timer("a", None, str(START)), owner.timer("b", None, str(START))]
    await held(owner, timers=[*gone, owner.timer("a", START + 9 * minute, "later")])
    due = pages.json(LATE, step="count")["due"]
    rows = await postgres.query(
        "SELECT due, count(*) FROM {t} WHERE computation = 'count' GROUP BY due ORDER BY due",
        t="timers",
    )
    assert [(one["due"], one["timers"]) for one in due["moments"]] == [
        (at.isoformat(), count) for at, count in rows
    ]
    assert [count for _, count in rows] == [1, 3, 3, 1]
    first, last = due["moments"][0], due["moments"][-1]
    assert (first["key"], first["window_from"][-14:-6], first["window_to"][-14:-6]) == (
        "c", "22:13:20", "22:14:20",
    )  # fmt: skip
    assert (last["tag"], last["window_from"]) == ("later", None)
    text = pages.text(LATE, step="count")
    assert "2023-11-14 22:13:20 UTC 2023-11-14 22:14:20 UTC 1" in text


async def test_the_step_furthest_behind_is_shown_first(owner: Owner, pages: SeenPages) -> None:
    await held(owner, timers=[owner.timer("a", START + 5)])
    found = pages.json(LATE)
    assert (found["step"]["name"], found["is_chosen"]) == ("count", False)
    assert [one["name"] for one in found["steps"]] == ["lines", "count"]
    assert "count is furthest behind" in pages.text(LATE)


async def test_a_step_that_is_not_there(pages: SeenPages) -> None:
    wrong = pages.get(LATE, step="cuont")
    assert wrong.status_code == 400
    assert "count" in wrong.text


async def test_keys_are_hidden(owner: Owner, pages_of: PagesOf, postgres: PostgresSite) -> None:
    await held(owner, timers=[owner.timer("secret", START + 5, "hush")])
    load = {"blocked": {"seconds": 3.0, "by": "computation count, key 'secret'"}}
    await postgres.store.heartbeat(owner.worker, 9.0, load)
    pages = pages_of(postgres.schema.url, redact=True)
    html = pages.get(LATE, step="count").text
    assert "key#" in html
    assert "blocks the event loop" in html
    for shown in (html, pages.get(f"/api{LATE}", step="count").text, pages.get("/").text):
        assert "secret" not in shown
        assert "hush" not in shown


def test_titles_of_incidents_are_those_of_the_documentation() -> None:
    folder = ROOT / "docs/howto/incidents"
    titles = {file: Path(folder / f"{file}.md").read_text().splitlines()[0] for file in INCIDENTS}
    assert titles == {file: f"# {title}" for file, title in INCIDENTS.items()}


async def test_cures_are_changes_with_their_fields_filled_in(
    owner: Owner, pages: SeenPages
) -> None:
    letter = owner.dead_letter(1)._replace(parked="failed", watermark=0, hold=START)
    await held(owner, dead_letters=[letter])
    (cure,) = pages.json(LATE, step="count")["remedy"]["cures"]
    assert "1 dead letter matches" in pages.foresee("wheel", cure["verb"], **cure["filters"])
    html = pages.get(LATE, step="count").text
    for page in ("key", "letters", "timers"):
        (link,) = set(re.findall(rf'href="(/pipelines/wheel/{page}\?[^"]+)"', html))
        assert pages.get(unescape(link)).status_code == 200
    assert 'href="/pipelines/wheel/do/retry?' in html


async def test_the_timer_that_holds_is_cancelled_by_its_button(
    owner: Owner, pages: SeenPages, postgres: PostgresSite
) -> None:
    await held(owner, timers=[owner.timer("a", START + 5, "alarm")])
    (cure,) = pages.json(LATE, step="count")["remedy"]["cures"]
    assert "alarm" in pages.foresee("wheel", cure["verb"], **cure["filters"])
    done = pages.carry_out("wheel", cure["verb"], reason="a test", **cure["filters"])
    assert done.status_code == 303
    asked = await postgres.query("SELECT verb, key::text, payload ->> 'tag' FROM {r}", r="request")
    assert asked == [("cancel_timer", '"a"', "alarm")]


FACTS = LateFacts(pipeline="wheel", labels={}, age_seconds=900.0, has_worker=True)


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"ended": True}, "--keep-open"),
        ({"rows_left": 1200}, "1,200 rows of lines are not read yet"),
        ({"rows_left": 0}, "there is no fault"),
        ({"has_worker": False}, "If it ends again, the last lines of its log have the reason"),
    ],
)
def test_what_to_do_about_the_newest_time_of_a_source(facts: dict[str, Any], says: str) -> None:
    root = HolderRoot(
        kind="source", step="lines", what="lines.txt: newest seen time less the lateness"
    )
    found = remedy_for(root, msgspec.structs.replace(FACTS, **facts))
    assert says in " ".join(found.advice)


def test_a_paused_injector_without_a_worker_needs_both() -> None:
    root = HolderRoot(kind="paused", step="lines", what="")
    found = remedy_for(root, msgspec.structs.replace(FACTS, has_worker=False))
    assert [one.command for one in found.commands] == [
        "millwheel resume wheel lines", "millwheel worker MODULE:PIPELINE",
    ]  # fmt: skip
    assert [one.verb for one in found.cures] == ["resume"]


def test_a_moment_is_nothing_to_mend() -> None:
    root = HolderRoot(kind="record", step="count", what="", key=7)
    usual = remedy_for(root, msgspec.structs.replace(FACTS, age_seconds=0.4))
    assert "nothing to do" in usual.advice[0]
    assert "nothing to do" not in remedy_for(root, FACTS).advice[0]


def test_a_worker_that_is_blocked_comes_first() -> None:
    root = HolderRoot(kind="record", step="count", what="", key=7)
    facts = msgspec.structs.replace(FACTS, blocked_by="count, at x.py:7", waits="a commit")
    texts = [one.text for one in remedy_for(root, facts).first]
    assert texts == [
        "User code blocks the event loop of a worker (The event loop is blocked):",
        "A worker waits for the store (Commits wait):",
    ]
    unblock, end_the_session, _, _ = remedy_for(root, facts).advice
    assert "asyncio.to_thread" in unblock
    assert "pg_terminate_backend" in end_the_session


@pytest.mark.parametrize(
    ("facts", "incident"),
    [
        ({"blocked_by": "count, at x.py:7"}, "loop-blocked"),
        ({"waits": "a commit"}, "commits-wait"),
        ({}, "slow-computation"),
    ],
)
def test_a_timer_is_not_cancelled_while_its_worker_stands_still(
    facts: dict[str, Any], incident: str
) -> None:
    """It would take the result of its window with it."""
    root = HolderRoot(kind="timer", step="minutes", what="", key="all", tag="7")
    found = remedy_for(root, msgspec.structs.replace(FACTS, **facts))
    offers = [one.verb for one in found.cures] + [
        one.command for one in found.commands if "timers cancel" in one.command
    ]
    assert len(offers) == (0 if facts else 2)
    assert found.incident_file == incident
