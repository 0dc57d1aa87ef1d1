"""Changes of a key from the page to its owner, of a pipeline that runs in a process."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.seen_pages import SeenPages, text_of
from tests.support.servers import database
from tests.support.shells import Running, Shell
from tests.support.store_sites import GRAPH, Owner, PostgresSite, deploy

pytestmark = pytest.mark.newest

PagesOf = Callable[..., SeenPages]

SECONDS = 60.0


class Customers:
    """The pages of a pipeline with one customer, ann, and its worker."""

    def __init__(self, url: str, pages: SeenPages, worker: Running) -> None:
        self.url = url
        self.pages = pages
        self._worker: Running | None = worker

    def stop(self) -> None:
        if self._worker is not None:
            self._worker.end(signal.SIGTERM)
        self._worker = None

    def look(self) -> Any:
        found: Any = self.pages.json("/pipelines/reminders/key", step="remind", key="ann")["one"]
        return found

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS
        while not holds():
            assert time.monotonic() < deadline, self.look()
            time.sleep(0.05)

    def foresee(self, verb: str, **form: Any) -> str:
        return self.pages.foresee("reminders", verb, step="remind", key="ann", **form)

    def ask(self, verb: str, **form: Any) -> dict[str, Any]:
        """Send a form, and follow it to its end; returns its entry in the log."""
        answer = self.pages.carry_out(
            "reminders", verb, step="remind", key="ann", reason="a test", **form
        )
        assert answer.status_code == 303, text_of(answer)
        path, _, query = answer.headers["location"].partition("?")
        assert path == "/pipelines/reminders/log"
        name, _, batch = query.partition("=")
        assert name == "batch"
        self.until(lambda: not self.entry(batch)["open"])
        return self.entry(batch)

    def entry(self, batch: str) -> dict[str, Any]:
        (entry,) = self.pages.json("/pipelines/reminders/log", batch=batch)["batches"]
        return dict(entry)

    def stored(self) -> Any:
        with psycopg.connect(self.url) as connection:
            rows = connection.execute(
                "SELECT value FROM reminders.states WHERE key = '\"ann\"' AND entry = ''"
            ).fetchall()
        return rows[0][0] if rows else None


@pytest.fixture
def customers(
    postgres_url: Callable[[int], str], tmp_path: Path, pages_of: PagesOf
) -> Iterator[Customers]:
    with database(postgres_url(18)) as url:
        shell = Shell(tmp_path, url, "orders", "reminders")
        shell.environment["PYTHONPATH"] = str(Path(__file__).parents[2])
        shell.write([{"customer": "ann", "cents": 500, "minute": 1}])
        shell("migrate", "reminders")
        worker = shell.start("worker", "tests.support.reminders:pipeline")
        pages = pages_of(url)
        made = Customers(url, pages, worker)
        deadline = time.monotonic() + SECONDS
        while "remind" not in pages.text("/pipelines/reminders/key"):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        made.until(lambda: len(made.look()["timers"]) == 2)
        yield made
        pages.close()
        made.stop()


def test_an_operator_changes_a_key_from_its_page(customers: Customers) -> None:
    state = {"cents": 500, "fired": [], "address": {}}
    assert customers.look()["state"] == customers.stored()

    # A state, by a merge and as a whole.
    told = customers.foresee("set_state")
    assert "the state is now" in told
    assert "write the fields to change, or the whole new state, and look again" in told
    merge = '{"cents": 700, "address": {"city": "Bonn"}}'
    told = customers.foresee("set_state", merge=merge, condition='{"cents": 500}')
    becomes = told.partition("it becomes ")[2]
    assert ('"cents":700' in becomes, '"city":"Bonn"' in becomes) == (True, True)
    done = customers.ask("set_state", merge=merge, condition='{"cents": 500}')
    assert (done["done"], done["actor"], done["reason"]) == (1, "ann", "a test")
    changed = {**state, "cents": 700, "address": {"city": "Bonn"}}
    assert decoded(customers.look()["state"], state) == changed
    assert customers.look()["state"] == customers.stored()
    assert "nothing would change" in customers.foresee("set_state", merge='{"cents": 700}')
    told = customers.foresee("set_state", merge='{"address": {"city": null}}')
    assert "it becomes" in told
    assert "Bonn" not in told.partition("it becomes")[2].partition("the owner")[0]
    assert customers.ask("set_state", value='{"cents": 1}')["done"] == 1
    assert decoded(customers.look()["state"], state) == {**state, "cents": 1}

    # What cannot be done is said before, and refused by the owner.
    told = customers.foresee("set_state", merge='{"cents": 2}', condition='{"cents": 9}')
    assert "the condition does not hold" in told
    refused = customers.ask("set_state", merge='{"cents": 2}', condition='{"cents": 9}')
    assert (refused["done"], refused["not_done"]) == (0, 1)
    refused = customers.ask("set_state", value='{"cents": "much"}')
    assert "cannot be the state" in refused["detail"]
    assert decoded(customers.look()["state"], state)["cents"] == 1

    # Timers.
    told = customers.foresee("fire_timer", tag="close")
    assert "runs process_timer of remind now, with the time 2024-01-02T00:00:00+00:00" in told
    assert customers.ask("fire_timer", tag="close")["done"] == 1
    assert customers.look()["state"]["fired"] == ["watermark close"]
    assert [timer["tag"] for timer in customers.look()["timers"]] == ["call"]
    told = customers.foresee("fire_timer", tag="close")
    assert "the key has no watermark timer with the tag 'close' now" in told
    assert "cancels the wall timer with the tag 'call'" in customers.foresee(
        "cancel_timer", tag="call", kind="wall"
    )
    assert customers.ask("cancel_timer", tag="call", kind="wall")["done"] == 1
    assert customers.look()["timers"] == []
    assert customers.look()["state"]["fired"] == ["watermark close"]

    # All of it.
    assert "the key begins again" in customers.foresee("delete_state")
    assert customers.ask("delete_state")["done"] == 1
    assert (customers.look()["state"], customers.stored()) == (None, None)
    assert "the key has no state: nothing would change" in customers.foresee("delete_state")
    told = customers.foresee("set_state", merge='{"cents": 3}')
    assert "a new one gets the changes, with the defaults of its type" in told
    happened = [event["happened"] for event in history(customers)]
    assert happened[:2] in (["state removed", "asked"], ["asked", "state removed"])

    # Nobody is there to do it.
    customers.stop()
    told = customers.foresee("set_state", merge='{"cents": 3}')
    assert "No live worker owns the key now: the request waits" in told
    customers.until(lambda: customers.look()["owner"] is None)
    page = customers.pages.text("/pipelines/reminders/key", step="remind", key="ann")
    assert "owned by no live worker" in page


def history(customers: Customers) -> list[dict[str, Any]]:
    found = customers.pages.json("/pipelines/reminders/key", step="remind", key="ann")
    events: list[dict[str, Any]] = found["history"]["events"]
    return events


def decoded(stored: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """A state, of which the defaults may not be stored."""
    return {**defaults, **stored}


async def test_a_wrong_form_is_refused_in_words(postgres: PostgresSite, pages_of: PagesOf) -> None:
    owner = await Owner.take(postgres.store)
    commit = owner.commit()
    commit.states = [owner.state("a", {"n": 1})]
    await owner.write(commit)
    pages = pages_of(postgres.schema.url)
    for verb, form, words in (
        ("set_state", {"merge": '{"n"'}, "changes takes JSON"),
        ("set_state", {"value": "x"}, "new state takes JSON"),
        ("set_state", {"merge": "{}", "condition": "x"}, "condition takes JSON"),
        ("set_state", {"merge": "{}", "value": "{}"}, "and not both"),
        ("set_state", {}, "write the fields to change"),
        ("delete_state", {"condition": "["}, "condition takes JSON"),
        ("fire_timer", {"kind": "hold"}, "Invalid enum value 'hold'"),
        ("cancel_timer", {"kind": "hold"}, "Invalid enum value 'hold'"),
        ("delete_state", {"key": "true"}, "true cannot be a key"),
        ("delete_state", {"step": "cuont"}, "no computation 'cuont'"),
    ):
        given: dict[str, Any] = {"step": "count", "key": "a", "reason": "a test", **form}
        answer = pages.carry_out("wheel", verb, **given)
        assert answer.status_code == 400, (verb, form)
        assert words in text_of(answer), (verb, form)
    assert pages.json("/pipelines/wheel/log")["batches"] == []
    for value, words in (("1", "nothing would change"), ("true", "it becomes")):
        merge = f'{{"n": {value}}}'
        assert words in pages.foresee("wheel", "set_state", step="count", key="a", merge=merge)


@pytest.mark.parametrize("part", [{"productions": "weak"}, {"bundles": True}])
async def test_owners_that_refuse_all_requests_are_not_asked(
    postgres: PostgresSite, pages_of: PagesOf, part: dict[str, Any]
) -> None:
    graph = {"nodes": {**GRAPH["nodes"], "count": {**GRAPH["nodes"]["count"], **part}}}
    owner = await Owner.take(postgres.store, await deploy(postgres.store, graph=graph))
    commit = owner.commit()
    commit.dead_letters = [owner.dead_letter(1)]
    await owner.write(commit)
    pages = pages_of(postgres.schema.url)
    for verb in ("set_state", "delete_state", "fire_timer", "cancel_timer"):
        assert "refuse all requests" in pages.foresee("wheel", verb, step="count", key="a")
    assert "1 of them; their owners refuse" in pages.foresee("wheel", "retry", all="true")


async def test_a_pipeline_on_spark_has_no_owner_to_ask(
    postgres: PostgresSite, pages_of: PagesOf
) -> None:
    await Owner.take(postgres.store)
    await postgres.query("UPDATE {k} SET owner = NULL", k="key_interval")
    await postgres.query(
        "INSERT INTO {q} (checkpoint, levels, sender, batch, low_watermark, output_watermark, "
        "counters, table_rows, began_at, changed_at) "
        "VALUES ('/c', '{{}}', 1, -1, 0, 0, '{{}}', '{{}}', now(), now())",
        q="spark_query",
    )
    pages = pages_of(postgres.schema.url)
    for verb in ("set_state", "delete_state", "fire_timer", "cancel_timer"):
        assert "runs on Spark" in pages.foresee("wheel", verb, step="count", key="a")
    text = pages.text("/pipelines/wheel/key", step="count", key="a")
    assert "what stands here is as it was on workers" in text
    assert "until one claims it" not in text
