"""Dead letters and requests about them in Postgres: counts, removals, and rows that somebody wrote
by hand."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from millwheel.store.console import administration
from millwheel.store.console.asking import EVERY_LETTER, Actor, Asking, LetterFilter, MatchedLetters
from millwheel.store.console.inspection import inspect
from millwheel.store.port.requests import PlacedSlots
from tests.support.store_sites import SECOND, START, Owner, PostgresSite, deploy

pytestmark = pytest.mark.newest

ME = Actor("the test", "because")


async def parked(postgres: PostgresSite) -> Owner:
    """A pipeline with a parked key, of one failed record and one that waits, and a letter of
    another key."""
    owner = await Owner.take(postgres.store, await deploy(postgres.store, shared=True))
    first = owner.dead_letter(1)
    commit = owner.commit(owner.interval_of("key 1"))
    commit.dead_letters = [
        first._replace(parked="failed", watermark=0, hold=START),
        first._replace(parked="waiting", watermark=0, hold=START, error="it waits"),
        owner.dead_letter(2)._replace(key=b'"key 2"', ts=START - SECOND),
    ]
    await owner.write(commit)
    return owner


def match(postgres: PostgresSite, letters: LetterFilter = EVERY_LETTER) -> MatchedLetters:
    with administration.transaction(postgres.schema.url) as connection:
        return Asking(connection, postgres.schema.name).match(letters)


async def test_what_matches_is_counted(postgres: PostgresSite) -> None:
    owner = await parked(postgres)
    await owner.write(owner.commit(low_watermark=START))
    await owner.write(owner.commit(owner.intervals[1], low_watermark=START))
    assert match(postgres) == MatchedLetters([1, 3], 0, 0, 0, {"count": 1}, 1, 2)
    with inspect(postgres.schema.url) as inspection:
        name = postgres.schema.name
        (kind,) = inspection.letters(name).by_error().kinds
        assert (kind.letters, kind.keys, kind.oldest, kind.computation) == (2, 2, 1, "count")
        (count,) = (c for c in inspection.status(name).computations if c.name == "count")
        assert (count.dead_letters_kept, count.parked.keys, count.parked.records) == (2, 1, 1)
        assert count.parked.seconds > 0


async def test_letters_of_a_removed_computation_can_be_discarded(postgres: PostgresSite) -> None:
    """Also those of its parked keys, which no owner runs any more."""
    await parked(postgres)
    url, name = postgres.schema.url, postgres.schema.name
    await postgres.query("UPDATE {w} SET address = 'a:1', lease_until = now()", w="worker")
    administration.remove_computations(url, name, ["count"])
    assert await postgres.query("SELECT * FROM {k}", k="parked_keys") == []
    every = LetterFilter(waiting=True)
    assert match(postgres, every)[:3] == ([1, 2, 3], 0, 3)
    with administration.transaction(url) as connection:
        asked = Asking(connection, name)
        assert asked.retry(ME, [1, 2, 3])[1] == 0
        assert asked.discard(ME, [1, 2, 3]) == [1, 2, 3]


async def test_a_request_names_only_a_letter_of_its_key(postgres: PostgresSite) -> None:
    owner = await parked(postgres)
    same_slot = "UPDATE {d} SET slot = (SELECT o.slot FROM {d} AS o WHERE o.id = 1)"
    await postgres.query(same_slot, d="dead_letter")
    with administration.transaction(postgres.schema.url) as connection:
        asked = Asking(connection, postgres.schema.name)
        assert asked.retry(ME, [1, 3])[1] == 2
    await postgres.query("UPDATE {r} SET letter = 2 WHERE letter = 3", r="request")
    places = [
        PlacedSlots(row.id, row.computation, row.slot_from, row.slot_to) for row in owner.intervals
    ]
    found = {one.about: one.letter for one in await postgres.store.open_requests(places, [], 10)}
    assert found[1] is not None
    assert found[2] is None, "it is one of another key"


@pytest.mark.parametrize("key", ["k1", "", "true", "{}", "1e"])
async def test_who_writes_a_request_by_hand_is_told_at_once(
    postgres: PostgresSite, key: str
) -> None:
    await deploy(postgres.store)
    with pytest.raises((psycopg.errors.CheckViolation, psycopg.errors.InvalidTextRepresentation)):
        await postgres.query(
            "INSERT INTO {r} (batch, asked_at, actor, reason, verb, computation, slot, key, "
            "due_at) VALUES (1, now(), 'me', '', 'delete_state', 2, 1, %s, now())",
            key,
            r="request",
        )


async def test_requests_of_long_ago_go(postgres: PostgresSite) -> None:
    """Those that are not settled stay."""
    await parked(postgres)
    with administration.transaction(postgres.schema.url) as connection:
        Asking(connection, postgres.schema.name).retry(ME, [1, 3])
        Asking(connection, postgres.schema.name).note(ME, "pause", {})
    await postgres.query(
        "UPDATE {r} SET outcome = 'done', settled_at = now() - interval '31 days' WHERE letter = 3",
        r="request",
    )
    await postgres.query("UPDATE {r} SET asked_at = now() - interval '31 days'", r="request")
    with administration.transaction(postgres.schema.url) as connection:
        Asking(connection, postgres.schema.name).note(ME, "resume", {})
    left = await postgres.query("SELECT verb, letter FROM {r} ORDER BY id", r="request")
    assert left == [("retry", 1), ("pause", None), ("resume", None)]
    await postgres.query("UPDATE {r} SET settled_at = now() - interval '31 days'", r="request")
    await postgres.store.register_worker("6b7a9e9c-8f3b-4d35-9f0e-000000000001", 9.0)
    assert await postgres.query("SELECT verb FROM {r}", r="request") == []


async def test_a_drained_log_goes_and_a_partition_stays(postgres: PostgresSite) -> None:
    owner = await Owner.take(postgres.store)
    logs = [id_ for (id_,) in await postgres.query("SELECT id FROM {log}", log="log")]
    await owner.claim()
    await postgres.store.retire_logs(logs)
    found = await postgres.query(
        "SELECT source, retired FROM {log} WHERE id = ANY(%s)", logs, log="log"
    )
    assert found == [("file lines.txt", True)]


async def test_a_letter_is_retried_or_discarded_and_never_both(postgres: PostgresSite) -> None:
    """The owner processes it as soon as the request is there."""
    await parked(postgres)
    url, name = postgres.schema.url, postgres.schema.name

    def discard() -> list[int]:
        with administration.transaction(url) as connection:
            return Asking(connection, name).discard(ME, [3])

    with ThreadPoolExecutor(1) as thread:
        with administration.transaction(url) as connection:
            assert Asking(connection, name).retry(ME, [3])[1] == 1
            gone = thread.submit(discard)
            with contextlib.suppress(TimeoutError):
                gone.result(1.0)  # it may also wait for the retry
        assert gone.result() == []
        with administration.transaction(url) as connection:
            assert Asking(connection, name).withdraw(ME, 1) == 1
        await postgres.query("UPDATE {k} SET owner = NULL", k="key_interval")
        with administration.transaction(url) as connection:
            assert Asking(connection, name).discard(ME, [3]) == [3]
            asked = thread.submit(retry, postgres)
            with contextlib.suppress(TimeoutError):
                asked.result(1.0)
        assert asked.result() == 0


async def test_the_owner_discards_a_letter_whose_retry_was_withdrawn(
    postgres: PostgresSite,
) -> None:
    """It may have begun the retry: the letter would be discarded, and processed all the same."""
    await parked(postgres)
    retry(postgres)
    with administration.transaction(postgres.schema.url) as connection:
        assert Asking(connection, postgres.schema.name).withdraw(ME, 1) == 1
    assert discard(postgres) == ([], 2)
    assert discard(postgres) == ([], 0), "it is asked already"
    await postgres.query("UPDATE {r} SET outcome = 'refused' WHERE outcome IS NULL", r="request")
    assert discard(postgres) == ([3], 1), "an owner that has answered has begun nothing else"


def discard(postgres: PostgresSite) -> tuple[list[int], int]:
    """The numbers of the letters that are gone, and how many their owners are asked to discard."""
    with administration.transaction(postgres.schema.url) as connection:
        asking = Asking(connection, postgres.schema.name)
        return asking.discard(ME, [1, 3]), asking.discard_by_owners(ME, [1, 3])[1]


def retry(postgres: PostgresSite) -> int:
    with administration.transaction(postgres.schema.url) as connection:
        return Asking(connection, postgres.schema.name).retry(ME, [3])[1]
