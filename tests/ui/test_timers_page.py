"""*What is to come?*: timers by their time as the view has them, estimates that say so, and what
overdue ones wait for."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

from millwheel.core.codec import encode_key
from millwheel.core.model import MAX_TIME
from millwheel.store.console import pending_timers
from tests.support.seen_pages import SeenPages
from tests.support.store_sites import SECOND, START, Owner, PostgresSite

pytestmark = pytest.mark.newest

PagesOf = Callable[..., SeenPages]

TIMERS = "/pipelines/wheel/timers"
CLOCK = START + 100 * SECOND
"""Event time of the first interval; the second one is an hour ahead."""
HOUR = 3_600 * SECOND

BY_HOUR = """
SELECT floor((extract(epoch FROM due) * 1000000 - 1 - %s) / 3600e6)::int AS place, count(*)::int
FROM {v} WHERE kind = %s AND due < 'infinity' GROUP BY 1 ORDER BY 1
"""


async def run_to_clock(owner: Owner) -> None:
    for row, clock in zip(owner.intervals, (CLOCK, CLOCK + HOUR), strict=True):
        await owner.write(owner.commit(row, input_watermark=clock, low_watermark=clock))


async def set_timers(postgres: PostgresSite, owner: Owner, *, seed: int = 1) -> int:
    """Many of all kinds, half of them folded, some moved and cancelled since; returns the clock."""
    random = Random(seed)
    now = int(datetime.now(UTC).timestamp() * 1e6)

    def timer(n: int) -> Any:
        kind = ("watermark", "watermark", "wall", "hold")[n % 4]
        due = (now if kind == "wall" else CLOCK) + random.randrange(HOUR, 80 * HOUR)
        return owner.timer(f"key {n}", MAX_TIME if n % 50 == 1 else due, kind=kind)

    commit = owner.commit()
    commit.timers = [timer(n) for n in range(400)]
    await owner.write(commit)
    for row in owner.intervals:
        link = owner.links[row.id]
        assert await postgres.store.fold(row.id, link.sequencer, 0, link.n)
    commit = owner.commit()
    commit.timers = [timer(n) for n in range(350, 500)]
    commit.timers += [
        owner.timer(f"key {n}", None, kind=("watermark", "watermark", "wall", "hold")[n % 4])
        for n in range(50)
    ]
    await owner.write(commit)
    return now


async def test_timers_are_counted_as_the_view_has_them(
    postgres: PostgresSite, pages_of: PagesOf
) -> None:
    owner = await Owner.take(postgres.store)
    await run_to_clock(owner)
    await set_timers(postgres, owner)
    pages = pages_of(postgres.schema.url)
    found = pages.json(TIMERS, by="hour")["timers"]
    assert (found["is_exact"], found["overdue"]) == (True, [])
    at = int(datetime.fromisoformat(found["at"]).timestamp() * 1e6)
    for kind, clock in (("watermark", CLOCK), ("wall", at)):
        wanted = await postgres.query(BY_HOUR, clock, kind, v="timers")
        near = [(place, count) for place, count in wanted if place < 48]
        assert near, kind
        assert [
            (one["begins_in"] // 3600, one[kind]) for one in found["coming"] if one[kind]
        ] == near
        assert found["later"][kind] == sum(count for place, count in wanted if place >= 48)
    ((at_the_end,),) = await postgres.query(
        "SELECT count(*) FROM {v} WHERE due = 'infinity' AND kind = 'watermark'", v="timers"
    )
    assert found["at_the_end"]["watermark"] == at_the_end > 0
    (step,) = found["steps"]
    counts = await postgres.query("SELECT kind, count(*) FROM {v} GROUP BY kind", v="timers")
    assert {"watermark": step["watermark"], "wall": step["wall"], "hold": step["holds"]} == dict(
        counts
    )
    for kind in ("watermark", "wall"):
        ((soonest,),) = await postgres.query(
            "SELECT min(due) FROM {v} WHERE kind = %s", kind, v="timers"
        )
        assert datetime.fromisoformat(step[f"soonest_{kind}"]) == soonest
    text = pages.text(TIMERS, by="hour")
    assert f"{found['total']:,} timers are pending. All were counted." in text
    assert "No timer is overdue." in text
    assert "about" not in text.split("By time to come")[0].replace("All were counted", "")


async def test_of_many_timers_the_page_says_about(
    postgres: PostgresSite, pages_of: PagesOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = await Owner.take(postgres.store)
    await run_to_clock(owner)
    await postgres.query(
        "INSERT INTO {t} SELECT n %% 65536, %s, '\"key ' || n || '\"', 'watermark', '', due, "
        "due, 0 FROM generate_series(1, 60000) AS n, "
        "LATERAL (SELECT %s + n::bigint * 7919 %% 3000 * 3600000000 + 1800000000 AS due) AS d",
        owner.computation,
        CLOCK,
        t="timer",
    )
    await postgres.query("ANALYZE {t}", t="timer")
    monkeypatch.setattr(pending_timers, "MOST_EXACT", 5_000)
    monkeypatch.setattr(pending_timers, "SAMPLED_BLOCKS", 150)
    pages = pages_of(postgres.schema.url)
    found = pages.json(TIMERS, by="minute")["timers"]
    assert (found["is_exact"], found["units_are_exact"]) == (False, True)
    assert found["total"] == pytest.approx(60_000, rel=0.05)
    assert found["total"] % 1_000 == 0
    assert found["coming"] == [{"begins_in": 29 * 60, "watermark": 20, "wall": 0}]
    text = pages.text(TIMERS, by="minute")
    assert "about 60,000 timers are pending." in text
    assert "by the statistics of Postgres" in text
    assert "those of each minute below are exact." in text
    assert "29 to 30 min 20" in text
    days = pages.json(TIMERS, by="day")["timers"]
    assert days["units_are_exact"] is False
    assert sum(one["watermark"] for one in days["coming"]) == pytest.approx(14_880, rel=0.2)
    assert days["later"]["watermark"] == pytest.approx(45_120, rel=0.2)
    text = pages.text(TIMERS, by="day")
    assert "may be off by half" in text
    assert "0 to 1 d about" in text
    # Those of one step are a part of the same estimate.
    one = pages.json(TIMERS, by="day", step="count")["timers"]
    assert one["total"] == found["total"]
    # Changes that are too many to be read are left out, and the page says so.
    monkeypatch.setattr(pending_timers, "MOST_CHANGES", 0)
    commit = owner.commit(owner.intervals[0])
    commit.timers = [owner.timer("key 1", CLOCK + 5)]
    await owner.write(commit)
    later = pages_of(postgres.schema.url)
    assert later.json(TIMERS)["timers"]["leaves_out_changes"] is True
    text = later.text(TIMERS)
    assert "The newest changes are left out" in text
    assert "below are exact but for the newest changes." in text


async def test_overdue_timers_say_what_they_wait_for(
    postgres: PostgresSite, pages_of: PagesOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = await Owner.take(postgres.store)
    await run_to_clock(owner)
    behind, ahead = owner.intervals
    here = [key for n in range(40) if owner.interval_of(key := f"key {n}").id == behind.id][:6]
    there = [key for n in range(40) if owner.interval_of(key := f"key {n}").id == ahead.id][:4]
    commit = owner.commit()
    commit.timers = [
        *(owner.timer(key, CLOCK - 7 * SECOND) for key in here),  # due
        *(owner.timer(key, CLOCK + 60 * SECOND, "later") for key in here),  # not due here
        *(owner.timer(key, CLOCK + 60 * SECOND) for key in there),  # but due there
        owner.timer(here[0], START, "", "wall"),
    ]
    await owner.write(commit)
    await postgres.query(
        "INSERT INTO {d} (slot, computation, stream, key, value, place, error, traceback, "
        "attempts, stamp, parked) VALUES (%s, %s, 'words', %s, '1', '', '', '', 1, 0, 'failed')",
        encode_key(here[1])[1],
        owner.computation,
        f'"{here[1]}"',
        d="dead_letter",
    )
    for folded in (False, True):
        pages = pages_of(postgres.schema.url)
        found = pages.json(TIMERS)["timers"]["overdue"]
        assert [(one["kind"], one["reason"], one["timers"]) for one in found] == [
            ("wall", "owner", 1), ("watermark", "owner", 9), ("watermark", "parked", 1),
        ]  # fmt: skip
        # By the event time of their own interval: the other one is an hour ahead.
        assert [one["seconds"] for one in found[1:]] == [3_540.0, 7.0]
        text = pages.text(TIMERS)
        assert "their keys are parked: mend the dead letters" in text
        assert "their owner, who has not come to them" in text
        if not folded:
            for row in owner.intervals:
                link = owner.links[row.id]
                assert await postgres.store.fold(row.id, link.sequencer, 0, link.n)
    monkeypatch.setattr(pending_timers, "MOST_OVERDUE", 3)
    few = pages_of(postgres.schema.url).json(TIMERS)["timers"]["overdue"]
    assert [one["has_more"] for one in few if one["kind"] == "watermark"] == [True] * (len(few) - 1)
    await postgres.query("UPDATE {w} SET lease_until = now() - interval '1 s'", w="worker")
    pages = pages_of(postgres.schema.url)
    reasons = {one["reason"] for one in pages.json(TIMERS)["timers"]["overdue"]}
    assert reasons == {"unowned"}
    assert "no live worker owns their key interval" in pages.text(TIMERS)


async def test_timers_that_were_not_looked_at_are_not_said_to_be_well(
    postgres: PostgresSite, pages_of: PagesOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many timers between the clocks of two intervals are due in one of them only."""
    owner = await Owner.take(postgres.store)
    await run_to_clock(owner)
    behind, ahead = owner.intervals
    keys = [f"key {n}" for n in range(40)]
    early = [key for key in keys if owner.interval_of(key).id == behind.id][:3]
    late = next(key for key in keys if owner.interval_of(key).id == ahead.id)
    commit = owner.commit()
    commit.timers = [
        *(owner.timer(key, CLOCK + SECOND) for key in early),
        owner.timer(late, CLOCK + 60 * SECOND),
    ]
    await owner.write(commit)
    monkeypatch.setattr(pending_timers, "MOST_OVERDUE", 3)
    changed = pages_of(postgres.schema.url).json(TIMERS)["timers"]
    assert (len(changed["overdue"]), changed["more_overdue"]) == (1, []), "all changes are read"
    for row in owner.intervals:
        link = owner.links[row.id]
        assert await postgres.store.fold(row.id, link.sequencer, 0, link.n)
    for most, text in ((3, "more may be overdue"), (5, "wait for")):
        monkeypatch.setattr(pending_timers, "MOST_OVERDUE", most)
        pages = pages_of(postgres.schema.url)
        found = pages.json(TIMERS)["timers"]
        assert (len(found["overdue"]), found["more_overdue"]) == (
            (0, ["count"]) if most == 3 else (1, [])
        )
        shown = pages.text(TIMERS)
        assert text in shown
        assert "No timer is overdue" not in shown


async def test_a_timer_of_1970_is_as_far_away_as_others(
    postgres: PostgresSite, pages_of: PagesOf
) -> None:
    owner = await Owner.take(postgres.store)
    for row in owner.intervals:
        clock = -10 * SECOND
        await owner.write(owner.commit(row, input_watermark=clock, low_watermark=clock))
    commit = owner.commit()
    commit.timers = [owner.timer("a", 0)]
    await owner.write(commit)
    (step,) = pages_of(postgres.schema.url).json(TIMERS)["timers"]["steps"]
    assert step["event_seconds"] == 10.0


async def test_an_overdue_timer_after_the_end_of_event_time(
    postgres: PostgresSite, pages_of: PagesOf
) -> None:
    owner = await Owner.take(postgres.store)
    for row in owner.intervals:
        await owner.write(owner.commit(row, input_watermark=MAX_TIME, low_watermark=MAX_TIME))
    commit = owner.commit()
    commit.timers = [owner.timer("a", CLOCK)]
    await owner.write(commit)
    pages = pages_of(postgres.schema.url)
    (found,) = pages.json(TIMERS)["timers"]["overdue"]
    assert found["seconds"] is None
    assert "event time has ended" in pages.text(TIMERS)


async def test_a_pipeline_without_timers_says_so(postgres: PostgresSite, pages_of: PagesOf) -> None:
    owner = await Owner.take(postgres.store)
    pages = pages_of(postgres.schema.url)
    assert "No timer is pending" in pages.text(TIMERS)
    commit = owner.commit()
    commit.timers = [owner.timer("a", CLOCK)]
    await owner.write(commit)
    unknown = pages_of(postgres.schema.url)
    assert "1 timer is pending." in unknown.text(TIMERS)
    assert unknown.json(TIMERS)["timers"]["unknown"]["watermark"] == 1
    assert "event time has not begun" in unknown.text(TIMERS)
    answer = pages.get(TIMERS, by="week")
    assert answer.status_code == 400
