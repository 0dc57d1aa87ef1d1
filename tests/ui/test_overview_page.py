"""*How is it?*: what is wrong with the pipelines of a store, in words."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from millwheel.ui import troubles
from millwheel.ui.pages import PAGES
from tests.support.described_graphs import LINES_TO_COUNTS
from tests.support.seen_pages import SeenPages
from tests.support.store_sites import COUNT, SECOND, START, Owner, PostgresSite, deploy

pytestmark = pytest.mark.newest

PagesOf = Callable[..., SeenPages]

AHEAD = START + 60 * SECOND


@pytest.fixture
def pages(pages_of: PagesOf, postgres: PostgresSite) -> SeenPages:
    return pages_of(postgres.schema.url)


async def owned(postgres: PostgresSite) -> Owner:
    made = await Owner.take(postgres.store, await deploy(postgres.store, graph=LINES_TO_COUNTS))
    await made.write(made.commit(made.injector, input_watermark=AHEAD, low_watermark=AHEAD))
    await made.write(made.commit(input_watermark=AHEAD, low_watermark=AHEAD))
    return made


def wrong(pages: SeenPages) -> list[str]:
    """The texts of what is wrong; each page that they lead to can be asked for."""
    (found,) = pages.json("/")["pipelines"]
    text = pages.text("/")
    for trouble in found["troubles"]:
        assert trouble["text"] in text
        if trouble["page"] is not None:
            PAGES[trouble["page"]].read_filters(trouble["filters"])
    return [trouble["text"] for trouble in found["troubles"] if not is_held(trouble)]


def is_held(trouble: dict[str, Any]) -> bool:
    """The times of these tests are years ago."""
    return bool(trouble["page"] == "late")


async def test_a_pipeline_that_never_ran(pages: SeenPages) -> None:
    (text,) = wrong(pages)
    assert text.startswith("created, but never run")


async def test_a_schema_of_another_version(pages: SeenPages, postgres: PostgresSite) -> None:
    await deploy(postgres.store)
    await postgres.query("UPDATE {v} SET version_num = '0009'", v="alembic_version")
    (text,) = wrong(pages)
    assert "0009" in text
    assert "run millwheel migrate wheel" in text


async def test_a_schema_of_a_newer_millwheel(pages: SeenPages, postgres: PostgresSite) -> None:
    await deploy(postgres.store)
    await postgres.query("UPDATE {v} SET version_num = '0999'", v="alembic_version")
    (text,) = wrong(pages)
    assert "a newer millwheel made it" in text


async def test_all_is_well(pages: SeenPages, postgres: PostgresSite) -> None:
    await owned(postgres)
    await postgres.query("UPDATE {k} SET generation = 1", k="key_interval")
    assert wrong(pages) == []


async def test_no_worker(pages: SeenPages, postgres: PostgresSite) -> None:
    await deploy(postgres.store, graph=LINES_TO_COUNTS)
    (text,) = wrong(pages)
    assert text.startswith("no worker runs it")


async def test_a_process_that_has_ended_is_dead(pages: SeenPages, postgres: PostgresSite) -> None:
    owner = await owned(postgres)
    pid = ended_process()
    await postgres.query("UPDATE {w} SET pid = %s WHERE NOT stopped", pid, w="worker")
    assert wrong(pages) == [
        "no worker runs it: start one with millwheel worker MODULE:PIPELINE",
        f"worker {owner.worker[:8]} on {await host(postgres)} is dead: its process {pid} has "
        "ended without a word",
    ]


def ended_process() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        return process.pid


async def host(postgres: PostgresSite) -> str:
    ((found,),) = await postgres.query("SELECT split_part(host, ' ', 1) FROM {w}", w="worker")
    return str(found)


async def test_a_worker_without_a_lease_is_silent(pages: SeenPages, postgres: PostgresSite) -> None:
    await owned(postgres)
    silent = str(uuid.uuid4())
    await postgres.store.register_worker(silent, -3.0)
    (text,) = wrong(pages)
    assert text.startswith(f"worker {silent[:8]} on ")
    assert "is silent: its lease ended 3" in text
    assert text.endswith("ago. It owns no interval any more: no harm is done")


async def test_workers_that_were_replaced_are_told_once(
    pages: SeenPages, postgres: PostgresSite
) -> None:
    """Their rows stay for a day."""
    await owned(postgres)
    for _ in range(3):
        await postgres.store.register_worker(str(uuid.uuid4()), -3.0)
    await postgres.query("UPDATE {k} SET owner = NULL WHERE slot_from > 9", k="key_interval")
    assert wrong(pages) == [
        "1 key interval without a live owner",
        "3 workers are gone. They own no interval any more: no harm is done",
    ]


async def test_a_silent_worker_with_intervals(pages: SeenPages, postgres: PostgresSite) -> None:
    await owned(postgres)
    silent = str(uuid.uuid4())
    await postgres.store.register_worker(silent, -3.0)
    await postgres.query("UPDATE {k} SET owner = %s WHERE slot_from > 9", silent, k="key_interval")
    found, unowned = wrong(pages)
    assert found.startswith(f"worker {silent[:8]} on ")
    assert found.endswith(" ago")
    assert unowned == "1 key interval without a live owner"


async def test_intervals_without_a_live_owner(pages: SeenPages, postgres: PostgresSite) -> None:
    await owned(postgres)
    await postgres.query("UPDATE {k} SET owner = NULL WHERE slot_from > 9", k="key_interval")
    assert wrong(pages) == ["1 key interval without a live owner"]


async def test_a_paused_injector(pages: SeenPages, postgres: PostgresSite) -> None:
    await owned(postgres)
    await postgres.pause("lines")
    assert wrong(pages) == ["lines is paused"]


async def test_parked_keys_and_letters(pages: SeenPages, postgres: PostgresSite) -> None:
    owner = await owned(postgres)
    letter = owner.dead_letter(1)
    commit = owner.commit(owner.interval_of("key 1"))
    commit.dead_letters = [
        letter._replace(parked="failed", watermark=0, hold=AHEAD),
        letter._replace(parked="waiting", watermark=0, hold=AHEAD),
        owner.dead_letter(2),
    ]
    await owner.write(commit)
    parked, letters = wrong(pages)
    assert parked.startswith("1 key of count parked for up to")
    assert parked.endswith(", with 1 record waiting")
    assert letters == "2 dead letters of count"
    (row,) = pages.json("/")["pipelines"]
    assert (row["dead_letters"], row["parked_keys"]) == (2, 1)


async def test_a_blocked_loop_and_a_wait_for_a_lock(
    pages: SeenPages, postgres: PostgresSite
) -> None:
    owner = await owned(postgres)
    load = {"blocked": {"seconds": 4.0, "by": "computation count, key 'a', at x.py:7"}}
    await postgres.store.heartbeat(owner.worker, 9.0, load)
    assert wrong(pages) == [f"user code blocks the event loop of worker {owner.worker[:8]}"]
    assert "at x.py:7" in pages.text("/")


async def test_a_worker_that_waits_for_the_store(pages: SeenPages, postgres: PostgresSite) -> None:
    owner = await owned(postgres)
    await postgres.store.heartbeat(owner.worker, 9.0, {"waits": "a commit, for process 7"})
    assert wrong(pages) == [f"worker {owner.worker[:8]} waits for the store"]
    assert "a commit, for process 7" in pages.text("/")


@pytest.mark.parametrize(("seconds", "is_long"), [(59.0, False), (83.0, True)])
async def test_user_code_that_works_on_one_key_for_long(
    pages: SeenPages, postgres: PostgresSite, seconds: float, is_long: bool
) -> None:
    owner = await owned(postgres)
    work = {"keys": 1, "oldest": "'key 1'", "seconds": seconds}
    interval = str(owner.interval_of("key 1").id)
    load = {"intervals": {interval: {"queue": 4, "at_work": work}}}
    await postgres.store.heartbeat(owner.worker, 9.0, load)
    expected = ["user code of count has worked on one key for 1 min 23 s"] if is_long else []
    (found,) = pages.json("/")["pipelines"]
    told = [trouble for trouble in found["troubles"] if "has worked on" in trouble["text"]]
    assert [trouble["text"] for trouble in told] == expected
    assert ("key 'key 1'" in pages.text("/")) is is_long


@pytest.mark.parametrize(
    ("pending", "per_second", "is_told"), [(88, 0.0, True), (86, 0.0, False), (100, 5.0, False)]
)
async def test_a_source_that_stands_at_its_limit(
    pages: SeenPages, postgres: PostgresSite, pending: int, per_second: float, *, is_told: bool
) -> None:
    owner = await owned(postgres)
    flow = {"pending": pending, "cap": 100, "latency": 0.1, "target": None}
    figures = {"flow": flow, "records": per_second, "records_out": per_second}
    await postgres.store.heartbeat(
        owner.worker, 9.0, {"intervals": {str(owner.injector.id): figures}}
    )
    (found,) = pages.json("/")["pipelines"]
    told = [one for one in found["troubles"] if "reads no further" in one["text"]]
    assert [one["text"][:48] for one in told] == (
        ["lines reads no further: 1 partition at the limit"] if is_told else []
    )


async def test_requests_that_wait_for_long(
    pages: SeenPages, pages_of: PagesOf, postgres: PostgresSite
) -> None:
    await owned(postgres)
    ask = (
        "INSERT INTO {request} (batch, asked_at, due_at, actor, reason, verb) SELECT 1, now() - "
        "ago, now() - ago, 'ann', '', 'pause' FROM (SELECT %s::interval AS ago) AS a"
    )
    postgres.schema.query(ask, "50 seconds", request="request")
    postgres.schema.query(ask, "-1 hour", request="request")  # it is not due yet
    assert wrong(pages) == []
    postgres.schema.query(ask, "2 minutes", request="request")
    (text,) = wrong(pages_of(postgres.schema.url))
    assert text == "2 requests of operators not carried out for up to 2 min 0 s"


async def test_an_old_snapshot(
    pages: SeenPages, pages_of: PagesOf, postgres: PostgresSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    await owned(postgres)
    monkeypatch.setattr(troubles, "SNAPSHOT_SECONDS", 0.0)
    assert wrong(pages) == []
    with psycopg.connect(postgres.schema.url) as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT 1")
        (text,) = wrong(pages_of(postgres.schema.url))
    assert text.startswith("a session has kept a snapshot for")


async def test_dropped_late_records_are_counted(
    pages: SeenPages, pages_of: PagesOf, postgres: PostgresSite
) -> None:
    owner = await owned(postgres)
    assert "late record" not in pages.text("/")
    counters = b'{"late_amended": 2, "late_dropped": 3}'
    await owner.write(owner.commit(owner.interval_of("key 1"), counters=counters))
    newly = pages_of(postgres.schema.url)
    assert "3 late records dropped so far" in newly.text("/")
    assert "2 amended, 3 dropped" in newly.text("/pipelines/wheel")


async def test_a_watermark_that_is_held_is_told_once(
    pages: SeenPages, postgres: PostgresSite
) -> None:
    """Not again for each step behind it."""
    owner = await owned(postgres)
    position = b'{"held_by": 12, "since": %d}' % START
    await owner.write(owner.commit(owner.injector, position=position))
    (found,) = pages.json("/")["pipelines"]
    (held,) = filter(is_held, found["troubles"])
    assert held["text"].startswith("the low watermark of lines is held for ")
    assert held["text"].endswith(", with 1 step behind it")
    assert held["detail"] == "row 12 of file lines.txt, not acknowledged"
    assert pages.get("/pipelines/wheel/late", **held["filters"]).status_code == 200


async def test_orphaned_state(pages: SeenPages, postgres: PostgresSite) -> None:
    marks = {"marks": ["map", {"type": "string"}, {"type": "integer"}]}
    known = replace(COUNT, state={"type": "object", "n": "int", "collections": marks})
    deployment = await deploy(postgres.store, graph=LINES_TO_COUNTS, count=known)
    owner = await Owner.take(postgres.store, deployment)
    commit = owner.commit()
    commit.states = [owner.state("a", 1, 'marks/"x"')]
    await owner.write(commit)
    await deploy(postgres.store, graph=LINES_TO_COUNTS)
    orphaned = [text for text in wrong(pages) if "no code reads" in text]
    assert orphaned == [
        "no code reads marks of count since generation 2: millwheel migrate wheel --allow-drop "
        "deletes it"
    ]


async def test_figures_of_a_pipeline_lead_to_its_pages(
    pages: SeenPages, postgres: PostgresSite
) -> None:
    await owned(postgres)
    (found,) = pages.json("/")["pipelines"]
    html = pages.get("/").text
    assert f"/pipelines/wheel/late?step={found['furthest_behind']}" in html
    for page in ("workers", "letters"):
        assert f'href="/pipelines/wheel/{page}"' in html
