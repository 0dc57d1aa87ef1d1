"""The stored progress of injectors: its JSON, and the statements that read it."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from millwheel.core.model import MIN_TIME
from millwheel.core.source_progress import FirstProgress, SourceProgress

ROOT = Path(__file__).parents[2]
READ = re.compile(r"\bposition\s*->>?\s*'(\w+)'")
OF_MODES = {"bundle"}
"""Fields of positions of other intervals than those of injectors."""


def statements() -> dict[Path, set[str]]:
    """By SQL file, the fields of positions that it reads."""
    files = [file for folder in ("store", "millwheel") for file in (ROOT / folder).rglob("*.sql")]
    found = {file: set(READ.findall(file.read_text("utf-8"))) - OF_MODES for file in files}
    return {file: fields for file, fields in found.items() if fields}


def test_statements_read_fields_that_are_stored() -> None:
    read = statements()
    assert {"held_by", "since", "sent_since", "ended", "reader", "seen"} == set().union(
        *read.values()
    )
    for file, fields in read.items():
        assert fields <= set(SourceProgress.__struct_fields__), file
        assert "`SourceProgress`" in file.read_text("utf-8"), f"{file}: name the class it reads"


def test_the_stored_json_has_each_field() -> None:
    progress = SourceProgress({"next": 3}, 5, held_by=3, since=7, sent_since=6, ended=True)
    assert msgspec.json.encode(progress) == (
        b'{"reader":{"next":3},"seen":5,"held_by":3,"since":7,"sent_since":6,"ended":true}'
    )
    assert msgspec.json.encode(SourceProgress()) == (
        b'{"reader":null,"seen":null,"held_by":null,"since":null,"sent_since":null,"ended":false}'
    )
    assert msgspec.json.encode(FirstProgress({"next": 3}, MIN_TIME)) == (
        b'{"reader":{"next":3},"seen":%d}' % MIN_TIME
    )


@pytest.mark.parametrize("position", [None, {}, {"length": 9}, {"bundle": {"number": 1}}])
def test_a_position_without_progress_is_the_beginning(position: dict[str, object] | None) -> None:
    assert SourceProgress.stored(position) == SourceProgress()
    assert SourceProgress.stored(position).event_time == MIN_TIME


def test_a_first_position_is_a_progress() -> None:
    first = msgspec.to_builtins(FirstProgress({"next": 3}, 5))
    assert SourceProgress.stored(first) == SourceProgress({"next": 3}, 5)
