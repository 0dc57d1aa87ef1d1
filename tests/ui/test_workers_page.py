"""The page of workers: the same owners, intervals and changes as the tables have, and the verbs."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from millwheel.core.model import SLOTS
from millwheel.services.worker import PipelineWorker
from millwheel.store.postgres.statements import TABLES
from tests.support.seen_pages import SeenPages, text_of
from tests.support.store_sites import Owner, PostgresSite, Schema
from tests.support.visit_files import pipeline, write

pytestmark = pytest.mark.newest

PagesOf = Callable[..., SeenPages]
PAGE = "/pipelines/wheel/workers"

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)

CUT_INTERVALS = """
WITH cut AS (
    INSERT INTO {key_interval}
        (computation, slot_from, slot_to, sequencer, generation, owner, pinned)
    SELECT computation, slot_from + n * 10,
        CASE WHEN n = 499 THEN slot_to ELSE slot_from + n * 10 + 10 END, 1, generation, owner, false
    FROM {key_interval}, generate_series(1, 499) AS n WHERE id = %s
)
UPDATE {key_interval} SET slot_to = slot_from + 10 WHERE id = %s
"""

ADD_EVENTS = """
INSERT INTO {placement_event} (at, interval_id, computation, slot_from, slot_to, what, reason)
SELECT now(), k.id, k.computation, 0, 1, 'wish', 'reason <b>' || n
FROM (SELECT * FROM {key_interval} LIMIT 1) AS k, generate_series(1, 120) AS n
"""

ADD_WORKER = """
INSERT INTO {worker} SELECT %s, host, pid, pid_started, now(), heartbeat_at, lease_seconds,
    now() + interval '1 minute', false, backends, '{{}}', 'elsewhere:1', 7
FROM {worker}
"""


@pytest.fixture
async def owner(postgres: PostgresSite) -> Owner:
    return await Owner.take(postgres.store)


@pytest.fixture
def pages(owner: Owner, postgres: PostgresSite, pages_of: PagesOf) -> SeenPages:
    return pages_of(postgres.schema.url)


def stored(schema: Schema, text: str, *params: Any) -> list[tuple[Any, ...]]:
    return schema.query(text, *params, **{name: name for name in TABLES})


def rings(pages: SeenPages, **filters: Any) -> dict[str, Any]:
    return {ring["name"]: ring for ring in pages.json(PAGE, **filters)["rings"]}


def test_owners_and_slots_are_those_of_the_tables(
    pages: SeenPages, owner: Owner, postgres: PostgresSite
) -> None:
    found = pages.json(PAGE)
    (worker,) = found["workers"]
    assert (worker["letter"], worker["is_well"]) == ("A", True)
    live = stored(postgres.schema, "SELECT id::text, pid, generation FROM {worker}")
    status = worker["status"]
    assert [(status["id"], status["pid"], status["generation"])] == live
    shown = [
        (one["id"], one["slot_from"], one["slot_to"], one["owner"])
        for ring in found["rings"]
        for one in ring["segments"]
    ]
    assert sorted(shown) == stored(
        postgres.schema,
        "SELECT id, slot_from, slot_to, owner::text FROM {key_interval} ORDER BY id",
    )
    for ring in found["rings"]:  # the strip has no gap
        at = 0.0
        for one in ring["segments"]:
            assert one["begin"] == pytest.approx(at)
            at += one["share"]
        assert at == pytest.approx(1.0)
    text = pages.text(PAGE)
    assert f"{status['id'][:8]}" in text
    assert "runs" in text


def test_without_a_worker_the_page_says_how_to_start_one(
    pages: SeenPages, postgres: PostgresSite
) -> None:
    stored(postgres.schema, "UPDATE {worker} SET stopped = true")
    text = pages.text(PAGE)
    assert "millwheel worker MODULE:PIPELINE" in text
    assert "without an owner" in text


def test_without_a_running_worker_the_page_says_where_the_reason_is(
    pages: SeenPages, pages_of: PagesOf, postgres: PostgresSite
) -> None:
    """An error that ends workers is in their logs only."""
    assert "last lines of its log" not in pages.text(PAGE)
    stored(postgres.schema, "UPDATE {worker} SET lease_until = %s", LONG_AGO)
    newly = pages_of(postgres.schema.url)
    assert "last lines of its log" in newly.text(PAGE)
    assert "do/set_aside" in newly.get(PAGE).text
    stored(postgres.schema, "UPDATE {worker} SET stopped = true")
    assert "last lines of its log" in pages_of(postgres.schema.url).text(PAGE)


def test_a_worker_whose_lease_is_over_owns_nothing_any_more(
    pages: SeenPages, postgres: PostgresSite
) -> None:
    stored(postgres.schema, "UPDATE {worker} SET lease_until = %s", LONG_AGO)
    found = pages.json(PAGE)
    (worker,) = found["workers"]
    assert not worker["is_well"]
    assert all(one["letter"] == "" for ring in found["rings"] for one in ring["segments"])
    assert "gone, records for it wait" in pages.text(PAGE, step="count")


def test_a_move_a_split_and_a_merge_are_shown_while_they_are_wanted(
    pages: SeenPages, owner: Owner, postgres: PostgresSite
) -> None:
    other, id_ = str(uuid.uuid4()), owner.intervals[0].id
    stored(postgres.schema, ADD_WORKER, other)
    stored(
        postgres.schema,
        "UPDATE {key_interval} SET wanted_by = %s, split_at = slot_from + 5, merge_with = 4711 "
        "WHERE id = %s",
        other,
        id_,
    )
    found = pages.json(PAGE)
    (change,) = found["changes"]
    at = owner.intervals[0].slot_from + 5
    assert change["text"] == (
        f"interval {id_} of count: moves from A to B; is to be split at slot {at}; is to be merged "
        "with interval 4711"
    )
    answer = pages.get(PAGE, step="count")
    assert 'class="cut"' in answer.text
    assert 'class="segment moving"' in answer.text
    assert "A→B" in text_of(answer)


def test_what_blocks_a_worker_is_hidden_with_its_key(
    pages: SeenPages, pages_of: PagesOf, postgres: PostgresSite
) -> None:
    load = {"blocked": {"seconds": 3.0, "by": "key 'secret'"}, "waits": "UPDATE t SET n = 4711"}
    stored(postgres.schema, "UPDATE {worker} SET load = %s", Jsonb(load))
    assert "key 'secret'" in pages.text(PAGE)
    redacted = pages_of(postgres.schema.url, redact=True)
    for path in (PAGE, f"/api{PAGE}"):
        text = redacted.get(path).text
        assert ("secret" in text, "4711" in text, "(hidden)" in text) == (False, False, True)


def test_workers_of_two_generations_are_compared(pages: SeenPages, postgres: PostgresSite) -> None:
    assert "several generations" not in pages.text(PAGE)
    other = str(uuid.uuid4())
    stored(postgres.schema, ADD_WORKER, other)
    stored(
        postgres.schema,
        "UPDATE {key_interval} SET owner = %s WHERE id = (SELECT max(id) FROM {key_interval})",
        other,
    )
    found = pages.json(PAGE, step="count")["generations"]
    assert {one["generation"] for one in found} == {1, 7}
    assert "several generations" in pages.text(PAGE, step="count")


def test_events_go_on_by_cursor(pages: SeenPages, postgres: PostgresSite) -> None:
    stored(postgres.schema, ADD_EVENTS)
    kept = stored(postgres.schema, "SELECT id FROM {placement_event} ORDER BY id DESC")
    found: list[tuple[int]] = []
    before = None
    for _ in range(20):
        part = pages.json(PAGE, before=before) if before else pages.json(PAGE)
        found += [(one["id"],) for one in part["events"]]
        before = part["next_before"]
        if before is None:
            break
    assert found == kept
    answer = pages.get(PAGE)
    assert "reason &lt;b&gt;120" in answer.text
    assert "Earlier ones" in answer.text


def test_many_intervals_are_folded_and_the_hot_one_is_marked(
    pages: SeenPages, owner: Owner, postgres: PostgresSite
) -> None:
    whole = max(owner.intervals, key=lambda row: row.slot_to)
    assert '<details id="intervals-count" open>' in pages.get(PAGE, before=1).text
    stored(postgres.schema, CUT_INTERVALS, whole.id, whole.id)
    found = "SELECT id FROM {key_interval} WHERE computation = %s ORDER BY slot_from DESC"
    ids = [id_ for (id_,) in stored(postgres.schema, found, whole.computation)]
    hot = ids[0]
    load = {str(id_): {"cpu": 0.6 if id_ == hot else 0.001, "records": 5.0} for id_ in ids}
    stored(postgres.schema, "UPDATE {worker} SET load = %s", Jsonb({"intervals": load}))
    ring = rings(pages)["count"]
    assert [one["id"] for one in reversed(ring["segments"])] == ids
    assert len(ids) >= 500
    assert [one["id"] for one in ring["segments"] if one["is_hot"]] == [hot]
    assert ring["left_out"] == len(ids) - 100
    answer = pages.get(PAGE)
    folded = re.search(r'<details id="intervals-count"(.*?)>(.*?)</details>', answer.text, re.S)
    assert folded is not None
    assert "open" not in folded[1]
    assert folded[2].count('<th scope="row"') == 100
    assert answer.text.count('class="segment') >= 500
    assert 'class="load hot"' in answer.text
    assert rings(pages, step="count")["count"]["left_out"] == 0
    assert pages.get(PAGE, step="nope").status_code == 400


# -- verbs ----------------------------------------------------------------------------------------


def test_a_run_that_is_alone_keeps_its_intervals(pages: SeenPages, owner: Owner) -> None:
    id_ = owner.intervals[0].id
    text = pages.foresee("wheel", "move_interval", interval=id_, to=owner.worker)
    assert "runs this pipeline by itself" in text
    refused = pages.carry_out("wheel", "split_interval", interval=id_, reason="a test")
    assert refused.status_code == 400
    assert pages.json("/pipelines/wheel/log")["batches"] == []


def test_the_worker_that_is_to_have_an_interval_changes_it(
    pages: SeenPages, owner: Owner, postgres: PostgresSite
) -> None:
    first, second = str(uuid.uuid4()), str(uuid.uuid4())
    stored(postgres.schema, ADD_WORKER, first)
    stored(postgres.schema, "UPDATE {worker} SET lease_until = %s WHERE id <> %s", LONG_AGO, first)
    lower, upper = (row.id for row in owner.intervals)
    text = pages.foresee("wheel", "split_interval", interval=lower)
    assert "Done by the worker that takes it next: its owner is gone." in text
    chosen = pages.get("/pipelines/wheel/do/move_interval", interval=lower).text
    assert (f"to={first}" in chosen, f"to={owner.worker}" in chosen) == (True, False)
    stored(
        postgres.schema,
        "INSERT INTO {worker} SELECT %s, host, pid, pid_started, started_at, heartbeat_at, "
        "lease_seconds, lease_until, false, backends, load, address, generation FROM {worker} "
        "WHERE id = %s",
        second,
        first,
    )
    stored(postgres.schema, "UPDATE {key_interval} SET owner = %s", first)
    stored(postgres.schema, "UPDATE {key_interval} SET wanted_by = %s WHERE id = %s", second, lower)
    text = pages.foresee("wheel", "merge_intervals", lower=lower, upper=upper)
    assert f"Done by worker {second[:8]}" in text
    assert f"The upper one moves from worker {first[:8]} to worker {second[:8]} before." in text


async def test_intervals_are_moved_pinned_split_and_merged(
    new_schema: Callable[[int], Schema], tmp_path: Path, pages_of: PagesOf
) -> None:
    schema = new_schema(18)
    files, _ = write(tmp_path, 50)
    pages = pages_of(schema.url)
    stop = asyncio.Event()

    async def foresee(verb: str, **form: Any) -> str:
        return await asyncio.to_thread(pages.foresee, "wheel", verb, **form)

    async def do(verb: str, **form: Any) -> None:
        answer = await asyncio.to_thread(pages.carry_out, "wheel", verb, reason="a test", **form)
        assert (answer.status_code, answer.headers["location"]) == (303, PAGE), text_of(answer)

    def rows() -> list[tuple[Any, ...]]:
        return stored(
            schema,
            "SELECT k.id, k.slot_from, k.slot_to, k.owner::text, k.pinned FROM {key_interval} AS k "
            "JOIN {computation} AS c ON c.id = k.computation WHERE c.kind = 'computation' "
            "ORDER BY k.computation, k.slot_from",
        )

    async def until(done: Callable[[list[tuple[Any, ...]]], bool]) -> list[tuple[Any, ...]]:
        while not done(found := rows()):  # noqa: ASYNC110 - a poll will do
            await asyncio.sleep(0.05)
        return found

    async with asyncio.timeout(60), asyncio.TaskGroup() as workers:
        for _ in range(2):
            workers.create_task(PipelineWorker(pipeline(schema.name, files), schema.url).run(stop))
        found = await until(lambda all_: len({row[3] for row in all_} - {None}) == 2)
        id_, _, _, has, _ = found[0]
        (other,) = {row[3] for row in found} - {has, None}
        assert "Choose the worker" in await foresee("move_interval", interval=id_)
        chosen = await asyncio.to_thread(pages.get, PAGE[:-7] + "do/move_interval", interval=id_)
        assert f"do/move_interval?interval={id_}&amp;to={other}" in chosen.text
        assert f"moves interval {id_}" in await foresee("move_interval", interval=id_, to=other[:8])
        await do("move_interval", interval=id_, to=other[:8])
        await until(lambda all_: all_[0][3:] == (other, True))
        text = await foresee("move_interval", interval=id_, to=other)
        assert "nothing would change" in text
        text = await foresee("split_interval", interval=id_)
        form = await asyncio.to_thread(pages.get, PAGE[:-7] + "do/split_interval", interval=id_)
        seen = re.search(r'name="at" value="(\d+)"', form.text)
        assert seen is not None, "what is done is what was foreseen"
        assert f"and {seen[1]} to" in text_of(form)
        assert f"Done by worker {other[:8]}" in text
        await do("split_interval", interval=id_, at=SLOTS // 8)
        first, second, *_ = await until(lambda all_: all_[0][2] == SLOTS // 8)
        assert "makes one interval" in await foresee(
            "merge_intervals", lower=first[0], upper=second[0]
        )
        wrong = await foresee("merge_intervals", lower=second[0], upper=first[0])
        assert "In reverse order they are" in wrong
        await do("merge_intervals", lower=first[0], upper=second[0])
        ((id_, *_), *_) = await until(lambda all_: all_[0][2] >= second[2])
        await do("unpin_interval", interval=id_)
        await until(lambda all_: not all_[0][4])
        assert "is not pinned" in await foresee("unpin_interval", interval=id_)
        again = await asyncio.to_thread(
            pages.carry_out, "wheel", "unpin_interval", interval=id_, reason="again"
        )
        assert again.status_code == 400, "and the log does not say that it was done"
        log = (await asyncio.to_thread(pages.json, "/pipelines/wheel/log"))["batches"]
        assert [entry["verb"] for entry in log] == [
            "move_interval", "merge_intervals", "split_interval", "move_interval",
        ]  # fmt: skip
        assert {(entry["actor"], entry["reason"]) for entry in log} == {("ann", "a test")}
        assert log[-1]["payload"] == {"interval": found[0][0], "to": other}
        stop.set()
