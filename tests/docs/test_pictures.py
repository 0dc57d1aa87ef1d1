"""The pictures of the docs are those that their script draws, and stand still where asked to."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from bench.pictures import __main__ as pictures
from bench.pictures.svg import FOLDER
from bench.pictures.tutorial_run import PAGE, RECORDED, TutorialRun, page_times

SVG = "{http://www.w3.org/2000/svg}"
FILES = sorted(FOLDER.glob("*.svg"))


def recorded() -> TutorialRun:
    return msgspec.json.decode(RECORDED.read_bytes(), type=TutorialRun)


def test_each_picture_is_what_the_script_makes_of_the_recorded_run() -> None:
    drawn = pictures.drawn()
    assert {file.stem: file.read_text("utf-8") for file in FILES} == drawn, (
        "python -m bench.pictures draws them"
    )


def test_the_recorded_run_has_the_payments_of_the_page() -> None:
    """The page's reader sees the picture's numbers: `test_pages.py` runs the page."""
    page = PAGE.read_text("utf-8")
    arrivals = recorded().arrivals
    assert [f"{arrival.at:%H:%M:%S}" for arrival in arrivals] == page_times(page)
    for window, payments in arrivals[-1].closed.items():
        assert f" {window:%Y-%m-%d %H:%M:%S}+00 | {payments:>8}\n" in page
    assert f"low watermark       {arrivals[-1].low_watermark:%Y-%m-%d %H:%M:%S}" in page
    assert [f"{arrival.at:%H:%M:%S}" for arrival in arrivals if arrival.late] == ["12:00:48"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_picture_has_no_script_and_stands_still_where_animation_is_off(file: Path) -> None:
    root = ElementTree.parse(file).getroot()
    found = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert found <= {"svg", "title", "desc", "style", "g", "rect", "path", "circle", "text"}
    (style,) = (element.text or "" for element in root.iter(f"{SVG}style"))
    still, _, moving = style.partition("@media (prefers-reduced-motion: no-preference)")
    assert "animation" not in still
    assert "animation" in moving
    assert "prefers-color-scheme: dark" in still


def test_a_page_shows_each_picture() -> None:
    pages = "".join(page.read_text("utf-8") for page in FOLDER.parent.rglob("*.md"))
    assert [file.name for file in FILES if f"pictures/{file.name})" not in pages] == []
