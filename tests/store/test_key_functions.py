"""Looks at one key by SQL: the slot of a key, its state, its timers, and records on their way to
it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql

from millwheel.cli.commands.key_commands import OneKey, get_state
from millwheel.cli.options import CommonOptions
from millwheel.core.codec import encode_key
from millwheel.core.model import from_micros
from millwheel.core.typed_values import key_of
from millwheel.errors import UsageError
from tests.support.examples import examples
from tests.support.store_sites import SECOND, START, Owner, PostgresSite, deploy

pytestmark = pytest.mark.newest

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=60)
PARTS = st.one_of(TEXTS, st.integers(-(2**63), 2**63 - 1))
KEYS = st.one_of(PARTS, st.lists(PARTS, min_size=1, max_size=3).map(tuple))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(150))
@given(keys=st.lists(KEYS, min_size=1, max_size=20))
def test_slots_are_those_of_the_engine(schema: Any, keys: list[Any]) -> None:
    encoded = [encode_key(key) for key in keys if len(msgspec.json.encode(key)) <= 240]
    texts = [text.decode() for text, _ in encoded]
    with psycopg.connect(schema.url) as connection:
        found = connection.execute(
            sql.SQL("SELECT {}(k::jsonb), {}(k::jsonb) FROM unnest(%s::text[]) AS k").format(
                sql.Identifier(schema.name, "key_text"), sql.Identifier(schema.name, "slot_of")
            ),
            [texts],
        ).fetchall()
    assert found == [(text.decode(), slot) for text, slot in encoded]


async def test_keys_of_every_length_have_the_engines_slot(postgres: PostgresSite) -> None:
    keys = ["x" * length for length in range(239)] + [7, -1, 10**18]
    texts = [msgspec.json.encode(key).decode() for key in keys]
    rows = await postgres.query(
        "SELECT {slot_of}(k::jsonb) FROM unnest(%s::text[]) AS k", texts, slot_of="slot_of"
    )
    assert [slot for (slot,) in rows] == [encode_key(key)[1] for key in keys]


async def test_the_slot_of_a_longer_key_is_refused_with_a_way_out(postgres: PostgresSite) -> None:
    with pytest.raises(psycopg.errors.RaiseException, match="takes 241 bytes") as refused:
        await postgres.query("SELECT {f}(%s::jsonb)", f'"{"x" * 239}"', f="slot_of")
    assert "millwheel state get" in (refused.value.diag.message_hint or "")


async def test_the_state_of_a_key_is_that_of_the_view_before_and_after_a_fold(
    postgres: PostgresSite,
) -> None:
    owner = await Owner.take(postgres.store)
    row = owner.interval_of("é")
    commit = owner.commit(row)
    commit.states = [
        owner.state("é", {"n": 1}),
        owner.state("é", "gone", "m/x"),
        owner.state("other", {"n": 5}),
    ]
    await owner.write(commit)
    commit = owner.commit(row)
    commit.states = [owner.state("é", {"n": 2}), owner.state("é", None, "m/x")]
    await owner.write(commit)
    link = owner.links[row.id]
    for through in (0, 1, 2):
        if through:
            assert await postgres.store.fold(row.id, link.sequencer, through - 1, through)
        for key in ("é", "other", "none"):
            text = msgspec.json.encode(key).decode()
            assert await postgres.query(
                "SELECT * FROM {state_of}(%s, %s::jsonb)", "count", text, state_of="state_of"
            ) == await postgres.query(
                "SELECT entry, value, version FROM {states} WHERE key = %s::jsonb ORDER BY entry",
                text,
                states="states",
            )


async def test_the_timers_of_a_key_are_those_of_the_view(postgres: PostgresSite) -> None:
    owner = await Owner.take(postgres.store)
    row = owner.interval_of("a")
    commit = owner.commit(row)
    commit.timers = [
        owner.timer("a", START, "tick", "wall"),
        owner.timer("a", START + SECOND, "close"),
        owner.timer("a", START + 2 * SECOND, "gone"),
        owner.timer("b", START, "other"),
    ]
    await owner.write(commit)
    commit = owner.commit(row)
    commit.timers = [owner.timer("a", None, "gone"), owner.timer("a", START + 5 * SECOND, "close")]
    await owner.write(commit)
    link = owner.links[row.id]
    for through in (0, 1, 2):
        if through:
            assert await postgres.store.fold(row.id, link.sequencer, through - 1, through)
        rows = await postgres.query(
            "SELECT kind, tag, due FROM {f}('count', '\"a\"'::jsonb)", f="timers_of"
        )
        assert rows == [
            ("wall", "tick", from_micros(START)),
            ("watermark", "close", from_micros(START + 5 * SECOND)),
        ]


async def test_records_on_their_way_to_a_key_are_found(postgres: PostgresSite) -> None:
    owner = await Owner.take(postgres.store)
    commit = owner.commit()
    commit.productions = [owner.production(key, {"v": key}) for key in ("a", "b", "a")]
    await owner.write(commit)
    rows = await postgres.query(
        "SELECT sender, stream, value FROM {f}('count', '\"a\"'::jsonb)", f="pending_of"
    )
    assert rows == [("count", "totals", {"v": "a"})] * 2


async def test_a_computation_that_is_not_there_is_told_with_those_that_are(
    postgres: PostgresSite,
) -> None:
    await deploy(postgres.store)
    for function in ("state_of", "timers_of", "pending_of"):
        with pytest.raises(
            psycopg.errors.RaiseException, match="no computation 'cuont'"
        ) as refused:
            await postgres.query("SELECT * FROM {f}('cuont', '1'::jsonb)", f=function)
        assert "count" in (refused.value.diag.message_hint or "")


# -- millwheel state get ----------------------------------------------------------------------


def show(postgres: PostgresSite, computation: str, key: str, **options: Any) -> None:
    """Run ``millwheel state get``."""
    one, common = OneKey(computation, key), CommonOptions(store=postgres.schema.url)
    get_state(one, postgres.schema.name, **options, common=common)


async def test_one_key_is_shown_with_its_interval(
    postgres: PostgresSite, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = await Owner.take(postgres.store)
    long = "x" * 1_000  # SQL does not compute its slot
    row = owner.interval_of(long)
    commit = owner.commit(row)
    commit.states = [owner.state(long, {"n": 1}), owner.state(long, 5, "seen/7")]
    commit.timers = [owner.timer(long, START, "close")]
    await owner.write(commit)
    show(postgres, "count", long)
    shown = capsys.readouterr().out
    assert f"interval {row.id} of worker {owner.worker[:8]}" in shown
    assert 'state (version 2): {"n": 1}' in shown
    assert ["seen/7", "5"] in [
        [cell.strip() for cell in line.split("|")] for line in shown.splitlines()
    ]
    assert "close" in shown
    assert "no records on their way to it" in shown
    show(postgres, "count", long, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["entries"]) == ({"n": 1}, {"seen/7": 5})
    assert [timer["tag"] for timer in found["timers"]] == ["close"]


async def test_of_many_entries_and_timers_a_page_is_shown(
    postgres: PostgresSite, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = await Owner.take(postgres.store)
    commit = owner.commit(owner.interval_of("a"))
    commit.states = [owner.state("a", n, f"seen/{n:04}") for n in range(130)]
    commit.timers = [owner.timer("a", START + n, f"tag {n:04}") for n in range(230)]
    await owner.write(commit)
    show(postgres, "count", "a")
    shown = capsys.readouterr().out
    assert ("seen/0099" in shown, "seen/0100" in shown) == (True, False)
    assert "100 of 130: --limit and --skip show others" in shown
    assert ("tag 0099" in shown, "tag 0100" in shown) == (True, False)
    assert "100 of 230: --limit and --skip show others" in shown
    show(postgres, "count", "a", limit=50, skip=100, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert [*found["entries"]] == [f"seen/{n:04}" for n in range(100, 130)]
    assert [timer["tag"] for timer in found["timers"]] == [f"tag {n:04}" for n in range(100, 150)]
    assert (found["entries_total"], found["timers_total"]) == (130, 230)


async def test_a_key_without_state_is_told(
    postgres: PostgresSite, capsys: pytest.CaptureFixture[str]
) -> None:
    await Owner.take(postgres.store)
    show(postgres, "count", "13")
    assert "no state; the text 13 is another key: '\"13\"'" in capsys.readouterr().out
    with pytest.raises(UsageError, match=r"no computation 'cuont'\. It has lines, count"):
        show(postgres, "cuont", "13")


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("13", 13), ("cat", "cat"), ('"13"', "13"), ("two words", "two words"),
        ('["JFK", 4]', ("JFK", 4)), ("", ""),
    ],
)  # fmt: skip
def test_a_word_stands_for_a_key(word: str, key: object) -> None:
    assert key_of(word) == key


@pytest.mark.parametrize("word", ["true", "1.5", "{}", "[]", "null", "[[1]]"])
def test_a_word_that_is_no_key_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="cannot be a key"):
        key_of(word)
