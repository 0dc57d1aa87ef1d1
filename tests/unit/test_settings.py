"""Each setting has a unit, a range and a reason, and is checked where it is given."""

from __future__ import annotations

import pydoc
import re
from dataclasses import fields, replace
from typing import Any

import pytest

from millwheel import Pipeline, Settings
from millwheel.core.addresses import MOST_CELLS
from millwheel.errors import GraphError, UsageError

NAMES = [each.name for each in fields(Settings)]
UNITS = ("bytes", "cells", "entries", "keys", "milliseconds", "records", "rows", "runs", "seconds")


def given(name: str, value: Any) -> Settings:
    values: dict[str, Any] = {name: value}
    return Settings(**values)


def limits(name: str) -> tuple[float, float]:
    (field,) = (each for each in fields(Settings) if each.name == name)
    least, most, _ = field.metadata["range"]
    return least, most


@pytest.mark.parametrize("name", NAMES)
def test_a_setting_takes_its_range_and_nothing_else(name: str) -> None:
    least, most = limits(name)
    for value in (least, most):
        assert getattr(given(name, value), name) == value
    for wrong in (least - 1, most + 1, -1, "6", None, True, float("nan"), float("inf"), [1]):
        with pytest.raises(UsageError, match=rf"^Settings\({name}=.*from .* to .*; the default is"):
            given(name, wrong)


@pytest.mark.parametrize("name", [each.name for each in fields(Settings) if each.type == "int"])
def test_a_number_of_things_is_whole(name: str) -> None:
    with pytest.raises(UsageError, match="give a whole number from"):
        given(name, limits(name)[1] - 0.5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"intervals": 0},
         "give a whole number from 1 to 65,536; the default is 1. Key intervals of"),
        ({"lease_seconds": "6"}, "give a number from 0.5 to 3,600.0; the default is 6.0. Time for"),
        ({"bundle_records": 0}, "give a whole number from 1 to"),
        ({"max_unacked_records": 0}, "give a whole number from 1 to"),
    ],
)  # fmt: skip
def test_a_refusal_says_what_to_give(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        Settings(**values)
    assert message in str(refused.value)


def test_a_copy_with_other_values_is_checked() -> None:
    with pytest.raises(UsageError, match="chunk_records=0"):
        replace(Settings(), chunk_records=0)


def test_help_has_the_range_and_the_meaning_of_each() -> None:
    shown = pydoc.plain(pydoc.render_doc(Settings))
    for each in fields(Settings):
        least, most, text = each.metadata["range"]
        assert f"{each.name} = {each.default:,} ({least:,} to {most:,})\n" in shown
        assert " ".join(text.split()[:6]) in shown
    one_line = re.sub(r"\s*\n[ |]*", "", shown)  # Python 3.13 writes a parameter a line
    assert re.search(r"Settings\(\s*\*,\s*intervals: '?int'? = 1,", one_line)


def test_the_end_of_a_name_is_its_unit_or_its_meaning_says_it() -> None:
    for each in fields(Settings):
        text = each.metadata["range"].text
        assert each.name.endswith(UNITS) or "umber of" in text or "intervals" in text or (
            "CPU seconds per second" in text or "part of" in text
        ), each.name  # fmt: skip


def test_broadcast_cells_have_one_limit() -> None:
    assert limits("broadcast_cells") == (1, MOST_CELLS)


def test_a_pipeline_takes_settings_only() -> None:
    with pytest.raises(GraphError, match=r"settings=\{'intervals': 2\}: give Settings\(\.\.\.\)"):
        Pipeline("p", settings={"intervals": 2})  # type: ignore[arg-type]
