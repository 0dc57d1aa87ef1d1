"""The way of one record alone stays short: its calls, and the files that they cross."""

from __future__ import annotations

from bench.one_record import follow

FILES = 68
CALLS = 1_500
CROSSINGS = 900


async def test_the_way_of_a_record_is_short() -> None:
    way = await follow()
    assert len(way.calls) <= FILES
    assert way.calls.total() <= CALLS
    assert way.crossings <= CROSSINGS
    assert way.calls["millwheel/runtime/lane/committer.py"] > 0, "nothing was followed"
