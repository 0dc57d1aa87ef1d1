"""The entries of one key in memory, beside a dictionary: what memory does not have and still knows
to be nowhere."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel.core.codec import Codec
from millwheel.runtime.keys import map_entries
from millwheel.runtime.keys.map_entries import Entries
from millwheel.state import ABSENT, UNKNOWN
from tests.support.examples import examples

CODEC: Codec[int] = Codec(int, what="a test")
PREFIXES = ("a/", "b/")


class Key:
    """A key with its cache and the store behind it; a fold writes what is durable."""

    def __init__(self, *, complete: bool, stored: dict[str, int]) -> None:
        self.key = "k"
        self.complete = complete
        self.stored = {name: b"%d" % value for name, value in stored.items()}
        self.cache: Any = SimpleNamespace(
            size=0, version=1, folded=0, compares=False, fetch_entry=self._fetch,
            scan_entries=self._scan,
            layout=SimpleNamespace(collections={"a": None, "b": None}),
        )  # fmt: skip
        self.asked = 0
        self._unfolded: list[tuple[int, list[tuple[str, bytes | None]]]] = []

    async def _fetch(self, _: Any, entry: str) -> tuple[bytes, int] | None:
        self.asked += 1
        value = self.stored.get(entry)
        return None if value is None else (value, 1)

    async def _scan(self, _: Any, after: str, before: str, limit: int) -> list[Any]:
        self.asked += 1
        names = sorted(name for name in self.stored if after < name < before)
        return [(name, self.stored[name], 1) for name in names[:limit]]

    def commit(self, entries: Entries, n: int) -> None:
        self._unfolded.append((n, entries.capture(entries.encoded(), n)))

    def fold(self, until: int) -> None:
        for n, changes in self._unfolded:
            if n <= until:
                self.stored.update({name: value for name, value in changes if value is not None})
                for name in [name for name, value in changes if value is None]:
                    self.stored.pop(name, None)
        self._unfolded = [each for each in self._unfolded if each[0] > until]
        self.cache.folded = until


async def get(entries: Entries, name: str) -> int | None:
    value = entries.lookup(name, CODEC)
    if value is UNKNOWN:
        value = await entries.fetch(name, CODEC)
    return None if value is ABSENT else value


async def read(entries: Entries, prefix: str, first: str, until: str) -> list[tuple[str, int]]:
    return [each async for each in entries.span(prefix, prefix + first, prefix + until, CODEC)]


NAMES = st.builds("{}{:03}".format, st.sampled_from(PREFIXES), st.integers(0, 15))
ACTS = st.one_of(
    st.tuples(st.sampled_from(["get", "get", "put", "remove"]), NAMES, st.just(0)),
    st.tuples(st.just("next"), st.sampled_from(PREFIXES), st.just(0)),
    st.tuples(st.just("read"), NAMES, st.integers(1, 16)),
    st.tuples(st.sampled_from(["commit", "commit", "fold", "revert"]), st.just(""), st.just(0)),
)


@given(
    stored=st.dictionaries(NAMES, st.integers(0, 9), min_size=8, max_size=20),
    acts=st.lists(ACTS, min_size=20, max_size=60),
    complete=st.booleans(),
    ahead=st.sampled_from([1, 3, 256]),
)
@settings(max_examples=examples(1500), deadline=None)
def test_entries_are_those_of_a_dictionary(
    stored: dict[str, int], acts: list[tuple[str, str, int]], complete: bool, ahead: int
) -> None:
    async def go() -> None:
        key = Key(complete=False, stored=stored)
        entries = Entries(key)
        if complete:
            for name, value in stored.items():
                entries.add(name, b"%d" % value, 1)
            key.complete = True
        model, captured = dict(stored), dict(stored)
        n = 0
        for number, (act, name, length) in enumerate(acts):
            if act == "get":
                assert await get(entries, name) == model.get(name)
            elif act == "put":
                entries.store(name, CODEC, number)
                model[name] = number
            elif act == "remove":
                entries.erase(name, CODEC)
                model.pop(name, None)
            elif act == "next":
                numbers = [int(known[2:]) for known in model if known.startswith(name)]
                new = f"{name}{max(numbers, default=0) + 1:03}"
                assert await get(entries, new) is None
                entries.store(new, CODEC, number)
                model[new] = number
            elif act == "read":
                # Bounds are no names: `MapState.range` leaves out the closing quote of the JSON.
                prefix, first = name[:2], int(name[2:])
                bounds = f"{first - 1:03}~", f"{first + length - 1:03}~"
                found = await read(entries, prefix, *bounds)
                assert found == sorted(
                    (known, value)
                    for known, value in model.items()
                    if known[:2] == prefix and first <= int(known[2:]) < first + length
                )
            elif act == "commit":
                key.fold(n)
                n += 1
                key.commit(entries, n)
                captured = dict(model)
            elif act == "fold":
                key.fold(n)
            else:
                entries.revert()
                model = dict(captured)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(map_entries, "READ_AHEAD", ahead)
        patch.setattr(map_entries, "TRIM_CELLS", 3)
        asyncio.run(go())


async def test_a_name_after_all_others_does_not_ask_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether memory had all at first, or the store was asked once."""
    monkeypatch.setattr(map_entries, "TRIM_CELLS", 6)
    for complete, asked in ((True, 0), (False, 2)):
        key = Key(complete=complete, stored={})
        entries = Entries(key)
        for number in range(100):
            assert await get(entries, f"a/{number:03}") is None
            entries.store(f"a/{number:03}", CODEC, number)
            key.commit(entries, number + 1)
            key.fold(number)
        assert len(entries.cells) < 10
        assert key.asked == asked
