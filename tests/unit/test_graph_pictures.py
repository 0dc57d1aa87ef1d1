"""The picture of a graph: boxes apart, arrows from border to border, and every name in its box."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import import_module
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from typer.testing import CliRunner

from examples.nexmark.as_sql import FILES
from millwheel import (
    Computation,
    Console,
    Context,
    JsonLines,
    Pipeline,
    Record,
    Stream,
    Table,
)
from millwheel.cli.main import app
from millwheel.graph import drawing
from millwheel.graph.layers import Line, Piece, Placed, Rectangle, place
from millwheel.graph.svg import svg
from tests.support.examples import examples
from tests.support.graph_pictures import SVG, check_picture, overlap, read
from tests.support.pipelines import Tally, script
from tests.support.product import ROOT
from tests.support.values import ITEMS, TALLY, Count, Counted, Item, at, key_of, time_of

REFUSED = {"q4", "q6", "q12"}
"""Queries of Nexmark that are not compiled; each file says why."""


def modules() -> Iterator[str]:
    for path in sorted((ROOT / "examples").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if "Pipeline(" in path.read_text("utf-8") and path.stem != "as_sql":
            yield ".".join(part for part in parts if part != "__init__")


def pipelines() -> Iterator[Any]:
    for name in modules():
        yield pytest.param(name, "pipeline", id=name)
    for query in sorted(FILES.keys() - REFUSED):
        yield pytest.param("examples.nexmark.as_sql", query, id=f"as_sql:{query}")


def made(module: str, name: str) -> Pipeline:
    found = getattr(import_module(module), name)
    return found if isinstance(found, Pipeline) else found()


def test_every_example_is_drawn() -> None:
    assert len(list(modules())) > 15
    assert len(FILES) > 20


# -- what the picture holds -----------------------------------------------------------------------


@pytest.mark.parametrize(("module", "name"), list(pipelines()))
def test_the_pictures_of_all_examples_are_sound(module: str, name: str) -> None:
    pipeline = made(module, name)
    graph = pipeline.graph()
    drawn = check_picture(pipeline._repr_svg_())
    assert {node.name for node in graph.nodes} <= drawn.boxes.keys()
    tables = {use.sink.name for _, use in pipeline.sinks if isinstance(use.sink, Table)}
    shown = {title for box, title in drawn.titles.items() if drawn.kinds[box] == "sink"}
    assert tables <= shown
    streams = {arrow.texts[0] for arrow in drawn.arrows}
    user_streams = {name for name in graph.streams if not re.search(r"__\w+$", name)}
    assert {stream for stream in user_streams if graph.readers(stream)} <= streams
    assert pipeline._repr_svg_() == svg(made(module, name).graph())


def pipeline_of_two_steps() -> Pipeline:
    pipeline = Pipeline("drawn")
    pipeline.inject(ITEMS, script(ITEMS, []), timestamp=time_of)
    pipeline.add(Tally(), ITEMS.by(lambda item: item.key))
    pipeline.sink(TALLY, Table("tally", Counted))
    pipeline.sink(TALLY, Table("newest", Counted, key=("key",)))
    pipeline.sink(TALLY, Console())
    return pipeline


def test_arrows_show_the_stream_and_the_key() -> None:
    """Of a lambda the fields that it takes; of an upsert the columns of the table's key."""
    drawn = read(pipeline_of_two_steps()._repr_svg_())
    assert {(a.start, a.end): a.texts for a in drawn.arrows} == {
        ("items_injector", "tally"): ["items", "by key"],
        ("tally", "tally_2"): ["tally"],
        ("tally", "tally_to_newest"): ["tally", "by key"],
        ("tally", "tally_to_console"): ["tally"],
    }


def test_a_lambda_that_computes_is_not_shown_as_its_fields() -> None:
    pipeline = Pipeline("drawn")
    pipeline.inject(ITEMS, script(ITEMS, []), timestamp=time_of)
    pipeline.add(Tally(), ITEMS.by(lambda item: item.number % 3))
    pipeline.add(Tally(), ITEMS.by(lambda item: (item.key, item.number)), name="pairs")
    pipeline.add(Tally(), ITEMS.by(key_of), name="named")
    manners = {a.end: a.texts[1] for a in read(pipeline._repr_svg_()).arrows}
    assert manners == {"tally": "by a lambda", "pairs": "by key, number", "named": "by key_of"}


def test_a_step_that_only_writes_a_sink_is_the_sinks_box() -> None:
    drawn = read(pipeline_of_two_steps()._repr_svg_())
    assert drawn.kinds == {
        "items_injector": "source",
        "tally": "computation",
        "tally_2": "sink",
        "tally_to_newest": "sink",
        "tally_to_console": "sink",
    }
    assert drawn.titles["tally_to_newest"] == "newest"


def test_a_sink_outside_the_store_is_one_box() -> None:
    drawn = read(made("examples.shop", "pipeline")._repr_svg_())
    assert [name for name, kind in drawn.kinds.items() if kind == "sink"] == [
        "alerts_to_alerts",
        "alerts_to_kafka",
    ]
    assert drawn.titles["alerts_to_kafka"] == "kafka"


def test_an_aggregate_shows_the_tables_that_it_follows_and_reads() -> None:
    drawn = read(made("examples.flights", "pipeline")._repr_svg_())
    by_spark = {(a.start, a.end): a.texts for a in drawn.arrows if "by_month" in (a.start, a.end)}
    assert by_spark == {
        ("pane_log", "by_month"): ["pane_log", "follows"],
        ("airport_hour", "by_month"): ["airport_hour", "reads"],
        ("by_month", "by_month_target"): ["groups", "by origin, month"],
    }


def test_two_steps_that_write_one_table_share_its_box() -> None:
    pipeline = Pipeline("drawn")
    pipeline.inject(ITEMS, script(ITEMS, []), timestamp=time_of)
    pipeline.add(Tally(), ITEMS.by(key_of))
    pipeline.add(Tally(), ITEMS.by(key_of), name="again")
    pipeline.sink(TALLY, Table("counts", Counted))
    drawn = read(pipeline._repr_svg_())
    assert [a.start for a in drawn.arrows if a.end == "counts"] == ["tally", "again"]


class Judge(Computation[Item, None, int, Count]):
    writes = (TALLY,)

    async def process_broadcast(self, record: Record[int], shared: Count) -> None: ...

    async def process_record(self, record: Record[Item], ctx: Context[None, Count]) -> None: ...


def test_hidden_streams_have_the_users_names() -> None:
    rules = Stream("rules", int)
    pipeline = Pipeline("drawn")
    pipeline.inject(ITEMS, script(ITEMS, []), timestamp=time_of, id=key_of)
    pipeline.inject(rules, script(rules, []), timestamp=lambda rule: at(rule))
    pipeline.add(Judge(), ITEMS.by(key_of), rules.broadcast())
    texts = [text for arrow in read(pipeline._repr_svg_()).arrows for text in arrow.texts]
    assert set(texts) == {"items", "rules", "by key_of", "broadcast"}


def test_a_name_that_markup_would_break_is_only_text() -> None:
    lines = Stream("lines", str)
    pipeline = Pipeline("drawn")
    pipeline.inject(lines, JsonLines('a&b<"c">\x1b.jsonl'), timestamp=lambda line: at(0))
    pipeline.sink(lines, Console())
    drawn = check_picture(pipeline._repr_svg_())
    assert 'json lines: a&b<"c">·.jsonl' in ["".join(t.itertext()) for t in drawn.root.iter()]


def test_long_and_wide_names_stay_in_their_boxes() -> None:
    lines = Stream("x" * 38, str)
    pipeline = Pipeline("drawn")
    pipeline.inject(lines, JsonLines(f"{'時' * 14}.jsonl"), timestamp=lambda line: at(0))
    pipeline.sink(lines, Console())
    drawn = check_picture(pipeline._repr_svg_())
    (detail,) = [t.text for t in drawn.root.iter(f"{SVG}text") if (t.text or "").startswith("json")]
    assert detail == f"json lines: {'時' * 10}…"
    known = ["".join(title.itertext()) for title in drawn.root.iter(f"{SVG}title")]
    assert any("時" * 14 in title for title in known), "the whole name is not to be found"


def test_a_pipeline_that_is_not_complete_shows_why() -> None:
    pipeline = Pipeline("begun")
    pipeline.add(Tally(), ITEMS.by(key_of))
    picture = " ".join(ElementTree.fromstring(pipeline._repr_svg_()).itertext())
    assert "pipeline begun is not complete" in picture
    assert "'tally' reads stream 'items', but nothing writes it" in " ".join(picture.split())


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_can_be_read_on_every_area(dark: bool) -> None:
    """The contrast of WCAG, level AA, in the rules that the picture really has."""
    style = re.search(r"<style>(.*)</style>", svg(pipeline_of_two_steps().graph()))
    assert style is not None
    light, dark_rules = style[1].split("@media (prefers-color-scheme: dark)")
    rules = dark_rules if dark else light
    areas = re.findall(r"(?:rect|\.paper) \{ fill: (#\w{6})", rules)
    texts = re.findall(r"(?:text|\.detail, \S+ \.manner) \{ fill: (#\w{6})", rules)
    assert (len(areas), len(texts)) == (6, 2)
    for area in areas:
        for text in texts:
            low, high = sorted((luminance(area), luminance(text)))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (area, text)


def test_rules_hold_in_this_picture_alone() -> None:
    """Notebooks put pictures into their page, where a rule for `text` would change others."""
    style = re.search(r"<style>(.*)</style>", svg(pipeline_of_two_steps().graph()))
    assert style is not None
    selectors = [s for rule in re.findall(r"([^{}]+)\{[^{}]*\}", style[1]) for s in rule.split(",")]
    assert len(selectors) > 20
    assert all(".millwheel-graph " in selector for selector in selectors), selectors
    assert " id=" not in svg(pipeline_of_two_steps().graph())


# -- Mermaid and the command ----------------------------------------------------------------------


def test_a_flowchart_has_a_box_of_its_own_for_a_table_called_like_a_step() -> None:
    text = drawing.mermaid(pipeline_of_two_steps().graph())
    assert "tally[tally]" in text
    assert 'tally_2[("tally")]' in text
    assert "tally -->|tally| tally_2" in text
    names = re.findall(r"^  (\w+)[\[(]", text, re.M)
    assert len(names) == len(set(names)) == 5


def test_the_command_writes_the_picture(tmp_path: Path) -> None:
    file = tmp_path / "fraud.svg"
    done = CliRunner().invoke(app, ["graph", "examples.fraud:pipeline", "--svg", str(file)])
    assert (done.exit_code, done.output) == (0, "")
    drawn = check_picture(file.read_text("utf-8"))
    assert {"orders_injector", "judge"} <= drawn.boxes.keys()


def test_the_command_says_why_a_picture_was_not_written(tmp_path: Path) -> None:
    file = tmp_path / "nowhere" / "fraud.svg"
    done = CliRunner().invoke(app, ["graph", "examples.fraud:pipeline", "--svg", str(file)])
    assert done.exit_code == 2
    assert f"--svg {file}: the picture cannot be written: No such file" in done.stderr
    both = ["graph", "examples.fraud:pipeline", "--svg", str(file), "--json"]
    assert "choose one of" in CliRunner().invoke(app, both).stderr


# -- any graph ------------------------------------------------------------------------------------


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Piece], list[Line]]:
    """Boxes and lines from earlier to later ones, several between two boxes as well."""
    count = draw(st.integers(1, 14))
    sizes = st.tuples(st.integers(20, 200), st.integers(20, 60))
    pieces = [Piece(str(number), *draw(sizes)) for number in range(count)]
    ends = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    pairs = draw(st.lists(ends.filter(lambda pair: pair[0] < pair[1]), max_size=24 * (count > 1)))
    label = st.tuples(st.integers(10, 120), st.sampled_from([18, 30]))
    return pieces, [Line(str(start), str(end), *draw(label)) for start, end in pairs]


def between(placed: Placed) -> Iterator[tuple[int, int]]:
    """From where to where lines bend."""
    for route in placed.routes:
        for (x, _), (to_x, _) in zip(route[::2], route[1::2], strict=False):
            yield x, to_x


@settings(max_examples=examples(300), deadline=None)
@given(graphs())
def test_nothing_overlaps_in_any_graph(drawn: tuple[list[Piece], list[Line]]) -> None:
    pieces, lines = drawn
    placed = place(pieces, lines)
    boxes = list(placed.boxes.values())
    for one, other in combinations([*boxes, *placed.labels], 2):
        assert not overlap(one, other)
    for piece in pieces:
        box = placed.boxes[piece.name]
        assert (box.width >= piece.width, box.height >= piece.height) == (True, True)
    for line, route, label in zip(lines, placed.routes, placed.labels, strict=True):
        assert (label.width >= line.width, label.height) == (True, line.height)
        start, end = placed.boxes[line.start], placed.boxes[line.end]
        assert route[0] == (start.x + start.width, route[0][1])
        assert start.y <= route[0][1] <= start.y + start.height
        assert route[-1] == (end.x, route[-1][1])
        assert end.y <= route[-1][1] <= end.y + end.height
        assert all(one[0] <= other[0] for one, other in pairwise(route)), "a line turns back"
        for (x, y), (to_x, to_y) in zip(route[1::2], route[2::2], strict=False):
            assert y == to_y
            assert not any(overlap(Rectangle(x, y, to_x - x, 1), box) for box in boxes)
    for x, to_x in between(placed):
        assert to_x > x
        assert not any(x < box.x + box.width and box.x < to_x for box in boxes)
        assert not any(x < label.x + label.width and label.x < to_x for label in placed.labels)
    assert place(pieces, lines) == placed


def test_arrows_that_need_not_cross_do_not() -> None:
    """Declared the other way round than they lead on."""
    pieces = [Piece(name, 60, 30) for name in "abcxyz"]
    lines = [Line(start, end, 30, 18) for start, end in ("az", "by", "cx")]
    placed = place(pieces, lines)
    above = sorted("abc", key=lambda name: placed.boxes[name].y)
    below = sorted("xyz", key=lambda name: placed.boxes[name].y)
    assert [{"a": "z", "b": "y", "c": "x"}[name] for name in above] == below


def test_the_picture_is_text_that_json_can_hold() -> None:
    """A notebook is JSON."""
    picture = svg(pipeline_of_two_steps().graph())
    assert json.loads(json.dumps(picture)) == picture
