"""The endpoint of a store: its metrics are there when no worker is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
import pytest

from millwheel.core.redaction import shown_key, without_key
from millwheel.errors import StoreUnavailable
from millwheel.services.endpoint import Endpoint
from millwheel.services.store_endpoint import StoreEndpoint, StoreLook
from millwheel.store.console.inspection import Holder, Operating
from millwheel.store.console.worker_ends import EndOfWorkers
from tests.support.endpoints import fetch, samples
from tests.support.figures import some_status


@dataclass
class Store:
    """A store as the endpoint sees it."""

    looks: int = 0
    failure: StoreUnavailable | None = None
    found: list[StoreLook] = field(
        default_factory=lambda: [
            StoreLook(some_status("one"), Operating(2, {"state": 100}, {"state": 3}, 5.0)),
            StoreLook(some_status("two")),
        ]
    )

    def look(self) -> list[StoreLook]:
        self.looks += 1
        if self.failure is not None:
            raise self.failure
        return self.found


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def url(store: Store) -> Iterator[str]:
    endpoint = StoreEndpoint(store.look, Endpoint())
    endpoint.start()
    yield f"http://{endpoint.address}"
    endpoint.stop()


def test_metrics_of_all_pipelines_without_a_worker(url: str) -> None:
    status, text, _ = fetch(url + "/metrics")
    assert status == 200
    assert text.count("# TYPE millwheel_store_workers gauge") == 1
    found = samples(text)
    assert found["millwheel_store_workers", ("one",)] == 0
    assert found["millwheel_store_intervals_unowned", ("two",)] == 1
    assert found["millwheel_store_open_requests", ("one",)] == 2
    assert found["millwheel_store_dead_rows", ("state", "one")] == 3
    assert found["millwheel_store_oldest_snapshot_seconds", ("one",)] == 5
    assert found["millwheel_store_backlog_records", ("check", "one")] == 7
    assert found["millwheel_store_dead_letters_kept", ("check", "one")] == 3
    assert found["millwheel_store_watermark_held_seconds", ("check", "one")] == 90.0
    assert found["millwheel_store_watermark_lag_seconds", ("out", "two")] == 5.0
    assert found["millwheel_store_disk_bytes", ("state", "one")] == 100
    assert ("millwheel_store_watermark_lag_seconds", ("check", "one")) not in found


def test_status_is_that_of_the_command(url: str) -> None:
    status, text, _ = fetch(url + "/status")
    assert status == 200
    found = msgspec.json.decode(text)["pipelines"]
    assert [one["name"] for one in found] == ["one", "two"]
    assert found[0]["computations"][0]["backlog"] == 7


def test_status_redacts_keys_as_logs_do(
    url: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = '["ada: x", 7]'
    held = f"key {key}: timer end, due 2024-05-01"
    holder = Holder("timer", held, ["ada: x", 7], "2024-01-01", root=held)
    source = Holder("source", "row 3 of x", None, "2024-01-01", root="row 3 of x")
    for one, holds in zip(store.found[0].status.computations, (holder, source), strict=True):
        one.holder = holds
    store.found[0].status.ends = [
        EndOfWorkers("2024-01-01", "2024-01-01", 1, 5.0, "w", "h", 1, "UserCodeError",
                     "ada failed", "one", "record:1", '"ada"', None)
    ]  # fmt: skip
    monkeypatch.setenv("MILLWHEEL_REDACT_KEYS", "1")
    text = fetch(url + "/status")[1]
    assert "ada" not in text
    first, second = msgspec.json.decode(text)["pipelines"][0]["computations"]
    shown = shown_key(("ada: x", 7))
    assert shown.startswith("key#")
    assert first["holder"]["key"] == shown
    assert (
        first["holder"]["what"] == first["holder"]["root"] == f"{shown}: timer end, due 2024-05-01"
    )
    assert second["holder"] == msgspec.to_builtins(source)
    assert without_key("key is no JSON").startswith("key#")
    monkeypatch.delenv("MILLWHEEL_REDACT_KEYS")
    assert (
        held
        in msgspec.json.decode(fetch(url + "/status")[1])["pipelines"][0]["computations"][0][
            "holder"
        ]["root"]
    )


def test_one_look_serves_many(url: str, store: Store) -> None:
    for path in ("/metrics", "/status", "/healthz"):
        assert fetch(url + path)[0] == 200
    assert store.looks < 3


def test_a_store_that_is_away_is_told(url: str, store: Store) -> None:
    store.failure = StoreUnavailable("the store cannot be reached")
    assert fetch(url + "/healthz")[:2] == (503, "the store cannot be reached\n")
    assert fetch(url + "/metrics")[0] == 503
    store.failure = None
    assert fetch(url + "/healthz")[:2] == (200, "ok\n")
    assert fetch(url + "/")[0] == 404
