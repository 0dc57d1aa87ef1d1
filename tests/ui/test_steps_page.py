"""*Where does it stand?*: the graph of the store with its figures; sources and sinks."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from millwheel.graph.picture import Arrow
from millwheel.graph.stored_picture import stored_picture
from millwheel.store.console.inspection import (
    CodeStatus,
    ComputationStatus,
    ParkedStatus,
    SinkStatus,
    SourceFlow,
    SourceStatus,
)
from millwheel.ui.live_graph import live_graph
from millwheel.ui.pages.steps_page import (
    StandingSteps,
    sources_left,
    undelivered,
    waiting_for_themselves,
)
from tests.support.described_graphs import LINES_TO_COUNTS, node
from tests.support.seen_pages import SeenPages
from tests.support.store_sites import COUNTS, Owner, PostgresSite, deploy

pytestmark = pytest.mark.newest

PagesOf = Callable[..., SeenPages]

STEPS = "/pipelines/wheel"


@pytest.fixture
async def owner(postgres: PostgresSite) -> Owner:
    return await Owner.take(postgres.store, await deploy(postgres.store, graph=LINES_TO_COUNTS))


@pytest.fixture
def pages(pages_of: PagesOf, owner: Owner, postgres: PostgresSite) -> SeenPages:
    return pages_of(postgres.schema.url)


def load(owner: Owner, **of_count: Any) -> dict[str, Any]:
    """A heartbeat with figures of the intervals of `count`, and of the source."""
    flow = {"pending": 3, "cap": 100, "latency": 0.1, "target": None, "lag_rows": 500}
    intervals = {str(row.id): of_count for row in owner.intervals}
    intervals[str(owner.injector.id)] = {"flow": flow, "records": 50.0, "records_out": 50.0}
    return {"intervals": intervals}


async def test_the_graph_has_the_figures_of_the_store(owner: Owner, pages: SeenPages) -> None:
    code = {"calls": 10, "seconds": 0.02, "p99": 0.004}
    await owner.store.heartbeat(
        owner.worker, 9.0, load(owner, queue=40, records=2.0, records_out=2.0, code=code)
    )
    html = pages.get(STEPS).text
    graph = html[html.index('<svg class="live-graph"') : html.index("</svg>")]
    assert "500 rows left" in graph
    assert "3 of at most 100" in html
    assert "10.0 s left" in graph
    assert "4.0/s · 80 waiting" in graph
    assert "2.0 ms code" in graph
    assert "! waits for itself" in graph
    assert "written in its commits" in graph
    links = re.findall(r'<a href="([^"]+)"', graph)
    assert sorted(links) == [f"{STEPS}/late?step=count", f"{STEPS}/late?step=lines"]
    text = pages.text(STEPS)
    assert "80 records wait here, which take 20.0 s at its rate" in text
    assert "count waits for itself computation 4.0/s" in text, "the table says so, too"
    assert "style=" not in html


async def test_a_worker_that_is_blocked_stops_its_steps(owner: Owner, pages: SeenPages) -> None:
    """Then none of them waits for itself."""
    figures = load(owner, queue=40, records=2.0, records_out=2.0)
    blocked = {"seconds": 4.0, "by": "computation count, at x.py:7"}
    await owner.store.heartbeat(owner.worker, 9.0, {**figures, "blocked": blocked})
    text = pages.text(STEPS)
    assert "user code blocks the event loop" in text
    assert "at x.py:7" in text
    assert "waits for itself" not in text


async def test_numbers_are_shown_where_keys_are_hidden(
    owner: Owner, pages_of: PagesOf, postgres: PostgresSite
) -> None:
    await owner.store.heartbeat(owner.worker, 9.0, load(owner, queue=4))
    html = pages_of(postgres.schema.url, redact=True).get(STEPS).text
    assert "500 rows left" in html


async def test_paused_steps_are_marked(
    owner: Owner, pages: SeenPages, postgres: PostgresSite
) -> None:
    await postgres.pause("lines")
    assert pages.json(STEPS)["marks"] == {"lines": ["paused"]}
    assert "! paused" in pages.get(STEPS).text
    assert "do/resume?step=lines" in pages.get(STEPS).text


async def test_outputs_that_are_withheld_are_said(
    owner: Owner, pages_of: PagesOf, postgres: PostgresSite
) -> None:
    assert "withholds" not in pages_of(postgres.schema.url).text(STEPS)
    row, *_ = owner.intervals
    commit = owner.commit(row, counters=b'{"withheld": 1234}')
    await owner.write(commit)
    await postgres.query("UPDATE {p} SET withholds = true, origin = 'shop@one'", p="pipeline")
    newly = pages_of(postgres.schema.url)
    assert newly.json(STEPS)["withheld"] == {"count": 1234}
    text = newly.text(STEPS)
    assert "It withholds what leaves the store (a copy of shop@one): no step" in text
    assert "millwheel outputs wheel on" in text
    assert "1,234" in text


async def test_rates_of_late_are_those_that_viewers_saw(
    owner: Owner, pages: SeenPages, postgres: PostgresSite
) -> None:
    await owner.store.heartbeat(owner.worker, 9.0, load(owner, records=3.0, records_out=0.0))
    found = pages.json(STEPS)["rates"]
    assert found == {"": [[0.0, 56.0]], "lines": [[0.0, 50.0]], "count": [[0.0, 6.0]]}
    assert "sparkline" not in pages.get(STEPS).text, "one point is no line"


async def test_what_a_viewer_reads_before_there_are_figures(
    pages_of: PagesOf, postgres: PostgresSite
) -> None:
    pages = pages_of(postgres.schema.url)
    assert "has never run" in pages.text(STEPS)
    await postgres.query("UPDATE {v} SET version_num = '0008'", v="alembic_version")
    newly = pages_of(postgres.schema.url)
    assert "millwheel migrate wheel" in newly.text(STEPS)
    assert newly.get(f"{STEPS}/late").status_code == 200


async def test_a_pipeline_on_spark_says_so(
    owner: Owner, pages: SeenPages, postgres: PostgresSite
) -> None:
    await put_on_spark(postgres)
    assert "runs on Spark" in pages.text(STEPS)
    assert "runs on Spark: batch 7" in pages.text("/")
    assert "all is well" not in pages.text("/")


async def put_on_spark(postgres: PostgresSite) -> None:
    await postgres.query(
        "INSERT INTO {q} (checkpoint, levels, sender, batch, low_watermark, output_watermark, "
        "counters, table_rows, began_at, changed_at) "
        "VALUES ('c', '[]', 9, 7, 0, 0, '{{}}', '{{}}', now(), now())",
        q="spark_query",
    )


# -- without a store ------------------------------------------------------------------------


def step(name: str, backlog: int, rate: float | None = 1.0, **more: Any) -> ComputationStatus:
    return ComputationStatus(name, more.pop("kind", "computation"), backlog=backlog,
                             per_second=rate, **more)  # fmt: skip


CHAIN = [Arrow("a", "b", "s"), Arrow("b", "c", "s"), Arrow("c", "d", "s")]


@pytest.mark.parametrize(
    ("steps", "marked"),
    [
        ([step("a", 900), step("b", 800), step("c", 40, 100.0), step("d", 1)], ["b"]),
        ([step("a", 900), step("b", 3), step("c", 0), step("d", 800)], ["d"]),
        ([step("a", 900), step("b", 3), step("c", 800), step("d", 60, 100.0)], ["c"]),
        # As much waits between two commits of a step that is fast.
        ([step("a", 900), step("b", 900, 5000.0), step("c", 0), step("d", 0)], []),
        # No worker says how fast it is.
        ([step("a", 900, None), step("b", 900, None), step("c", 0), step("d", 0)], []),
        # Its user code waits for a service.
        ([step("b", 30, 0.0, oldest_seconds=9.0), step("c", 0), step("d", 0)], ["b"]),
        # All steps stand still, as with a store that does not answer.
        ([step("b", 900, 0.0), step("c", 30, 0.0), step("d", 30, 0.0)], []),
        ([step("a", 900, kind="injector"), step("b", 0), step("c", 0), step("d", 0)], []),
    ],
)
def test_the_step_that_waits_for_itself(steps: list[ComputationStatus], marked: list[str]) -> None:
    assert list(waiting_for_themselves(steps, CHAIN)) == marked


def flow(rows: int | None, size: int | None, seconds: float | None) -> SourceFlow:
    return SourceFlow(2, 10, None, None, rows, size, seconds_left=seconds)


def test_what_is_left_to_read_is_that_of_all_partitions() -> None:
    sources = [
        SourceStatus("a", "1", False, None, flow(5, 50, 2.0)),
        SourceStatus("a", "2", True, None, flow(7, 70, 9.0)),
        SourceStatus("b", "1", False, None, flow(None, 8, None)),
        SourceStatus("c", "1", False, None, None),
    ]
    a, b, c = sources_left(sources, {"b"})
    assert (a.partitions, a.ended, a.rows_left, a.bytes_left, a.seconds_left, a.pending) == (
        2, 1, 12, 120, 9.0, 4,
    )  # fmt: skip
    assert (b.rows_left, b.bytes_left, b.paused) == (None, 8, True)
    assert (c.rows_left, c.bytes_left, c.pending) == (None, None, 0)
    assert [one.pending_limit for one in (a, b, c)] == [20, 10, None]


def test_what_is_undelivered_is_open_or_waits() -> None:
    scopes = [
        SinkStatus("ledger", 1, 4, 5, 30, 1.5, 6),
        SinkStatus("ledger", 2, 4, None, None, None, 2),
    ]
    (found,) = undelivered(scopes)
    assert (found.scopes, found.records, found.open_seconds) == (2, 38, 1.5)


def test_sinks_and_hidden_streams_of_stored_graphs() -> None:
    nodes = {
        "lines": node("injector", [], ["words__injected"], source={"json_lines": "x"}),
        "words_by_id": node("relay", ["words__injected"], ["words"]),
        "count": node(
            "computation", ["words"], ["totals"],
            **{"class": "Count", "sinks": {"totals": [COUNTS.describe(), {"json_lines": "out"}]}},
        ),
        "totals_to_counts": node("relay", ["totals"], [], sinks={"totals": [COUNTS.describe()]}),
        "ledger": node("computation", ["totals"], [], **{"class": "BundleDelivery"}),
    }  # fmt: skip
    picture = stored_picture("wheel", nodes)
    assert {(box.name, box.kind) for box in picture.boxes} == {
        ("lines", "source"), ("words_by_id", "relay"), ("count", "computation"),
        ("counts", "sink"), ("files", "sink"), ("totals_to_counts", "sink"), ("ledger", "sink"),
    }  # fmt: skip
    assert {(arrow.start, arrow.end, arrow.stream) for arrow in picture.arrows} == {
        ("lines", "words_by_id", "words"), ("words_by_id", "count", "words"),
        ("count", "counts", "totals"), ("count", "files", "totals"),
        ("count", "totals_to_counts", "totals"), ("count", "ledger", "totals"),
    }  # fmt: skip


def wide_graph(steps: int) -> StandingSteps:
    """Chains of six steps side by side, from one source to one sink."""
    nodes = {"lines": node("injector", [], ["s"])}
    for number in range(steps - 2):
        reads = "s" if number % 6 == 0 else f"s{number - 1}"
        nodes[f"step_{number}"] = node("computation", [reads], [f"s{number}"], **{"class": "X"})
    ends = [f"s{number}" for number in range(steps - 2) if number % 6 == 5 or number == steps - 3]
    nodes["merge"] = node("computation", ends, [], **{"class": "X"})
    picture = stored_picture("wheel", nodes)
    return StandingSteps(
        name="wheel", at="", schema_version="", schema_current=True, deployed=True,
        complete=False, on_spark=None,
        computations=[
            step(name, 12_345_678, 1_234_567.0, lag_seconds=86399.0, kind=of["kind"],
                 user_code=CodeStatus(0.99, 1.0), parked=ParkedStatus())
            for name, of in nodes.items()
        ],
        stopped=[], waiting_for_themselves={},
        marks={"step_3": ["waits for itself"]}, sources=[], sinks=[],
        boxes=list(picture.boxes), arrows=list(picture.arrows),
    )  # fmt: skip


def test_boxes_of_60_steps_do_not_overlap_and_hold_their_texts() -> None:
    figures = msgspec.to_builtins(wide_graph(60))
    drawn = str(live_graph(figures, lambda page, **filters: f"/{page}?{filters['step']}"))
    boxes = [
        tuple(map(int, found))
        for found in re.findall(
            r'</title><rect x="(\d+)" y="(\d+)" width="(\d+)" height="(\d+)"', drawn
        )
    ]
    assert len(boxes) == 60
    for number, (x, y, width, height) in enumerate(boxes):
        for other_x, other_y, other_width, other_height in boxes[:number]:
            assert (
                x + width <= other_x
                or other_x + other_width <= x
                or y + height <= other_y
                or other_y + other_height <= y
            )
    texts = re.findall(r'class="detail"[^>]*>([^<]+)<', drawn)
    assert "1,234,567/s · 12,345,678 waiting" in texts
    assert drawn.count("<a href=") == 60


def test_figures_do_not_move_the_boxes() -> None:
    def places(waiting: int) -> list[str]:
        figures = msgspec.to_builtins(wide_graph(12))
        for one in figures["computations"]:
            one["backlog"] = waiting
        drawn = str(live_graph(figures, lambda page, **filters: "/"))
        return re.findall(r"<rect [^>]+>", drawn)

    assert places(0) == places(10**9)
