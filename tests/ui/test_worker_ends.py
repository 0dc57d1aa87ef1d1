"""Why workers ended: in the store, on the pages, and from there set aside."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from millwheel import Computation, Context, JsonLines, Pipeline, Record, Stream
from millwheel.errors import DeployRefused, InputError, MillwheelError, StoreError, UserCodeError
from millwheel.services.run import Run
from millwheel.store.postgres.workers import KEEP_ENDS
from tests.support.seen_pages import SeenPages
from tests.support.store_sites import Schema

pytestmark = pytest.mark.newest

PagesOf = Callable[..., SeenPages]
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
WORKERS = "/pipelines/wheel/workers"


class Pay(msgspec.Struct):
    account: str
    cents: int


PAYS = Stream("pays", Pay)


class Check(Computation[Pay, int]):
    async def process_record(self, record: Record[Pay], ctx: Context[int]) -> None:
        if record.value.account == "<kim>":
            raise LookupError("no such account")
        ctx.state = (ctx.state or 0) + record.value.cents


def pipeline(path: Path, check: Computation[Pay, Any] | None = None) -> Pipeline:
    made = Pipeline("wheel")
    made.inject(PAYS, JsonLines([path]), timestamp=lambda _: BEGIN, lateness=timedelta(0))
    made.add(check or Check(), PAYS.by(lambda pay: pay.account), name="check", on_error="fail")
    return made


BOB, NO_JSON, KIM = ('{"account": "bob", "cents": 1}', '{"account": "eve", "cents": ',
                     '{"account": "<kim>", "cents": 1}')  # fmt: skip


@pytest.fixture
def path(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A file with the lines of the test's mark."""
    path = tmp_path / "pays.jsonl"
    path.write_text("".join(f"{line}\n" for line in request.param))
    return path


async def fail(made: Pipeline, schema: Schema, kind: type[MillwheelError]) -> str:
    with pytest.raises(kind) as raised:
        await Run(made, schema.url).run()
    return str(raised.value)


def offered(pages: SeenPages) -> dict[str, Any]:
    """The form that the page fills in for the newest end."""
    link = re.search(r'href="(\S*do/set_aside\?[^"]*)"', pages.get(WORKERS).text)
    assert link is not None
    query = parse_qs(urlsplit(unescape(link[1])).query)
    return {name: value for name, (value,) in query.items()}


@pytest.mark.parametrize("path", [[BOB, NO_JSON, KIM, BOB]], indirect=True, ids=["lines"])
async def test_what_stopped_a_worker_is_set_aside_from_its_page(
    schema: Schema, path: Path, pages_of: PagesOf
) -> None:
    made = pipeline(path)
    bad_row = await fail(made, schema, InputError)
    pages = pages_of(schema.url)
    (end,) = pages.json(WORKERS)["ends"]
    assert (end["kind"], end["error"], end["times"]) == ("InputError", bad_row, 1)
    assert "ended with InputError" in pages.text("/")
    assert offered(pages) == {"step": "pays_injector", "item": "1", "partition": str(path)}
    answer = pages.carry_out("wheel", "set_aside", reason="not JSON", **offered(pages))
    assert answer.status_code == 303, answer.text

    poison = await fail(made, schema, UserCodeError)
    assert await fail(made, schema, UserCodeError) == poison
    first, second = pages.json(WORKERS)["ends"]
    assert (first["kind"], first["error"], first["times"]) == ("UserCodeError", poison, 2)
    assert second["kind"] == "InputError"
    form = offered(pages)
    assert (form["step"], form["key"]) == ("check", '"<kim>"')
    assert pages.carry_out("wheel", "set_aside", reason="unknown", **form).status_code == 303

    summary = await Run(made, schema.url).run()
    assert summary.outcome == "complete"
    text = "SELECT key::text, value::text FROM {states}"
    assert schema.query(text, states="states") == [('"bob"', "2")]
    (done,) = pages.json("/")["pipelines"]
    assert not any("ended" in one["text"] for one in done["troubles"]), "all input is processed"


@pytest.mark.parametrize("path", [[BOB]], indirect=True, ids=["lines"])
async def test_a_refused_deploy_is_told(schema: Schema, path: Path, pages_of: PagesOf) -> None:
    await Run(pipeline(path), schema.url).run()

    class CheckOnce(Computation[Pay, list[str]]):
        async def process_record(self, record: Record[Pay], ctx: Context[list[str]]) -> None:
            ctx.state = [record.value.account]

    error = await fail(pipeline(path, CheckOnce()), schema, DeployRefused)
    pages = pages_of(schema.url)
    assert "the deploy of a worker" in pages.text("/")
    (end,) = pages.json(WORKERS)["ends"]
    assert (end["error"], end["item"]) == (error, None)
    assert "do/set_aside" not in pages.get(WORKERS).text


@pytest.mark.parametrize("path", [[KIM]], indirect=True, ids=["lines"])
async def test_redaction_hides_what_was_at_fault(
    schema: Schema, path: Path, pages_of: PagesOf
) -> None:
    await fail(pipeline(path), schema, UserCodeError)
    pages = pages_of(schema.url, redact=True)
    for text in (pages.get(WORKERS).text, pages.get(f"/api{WORKERS}").text):
        assert "UserCodeError" in text
        assert "kim" not in text
        assert "record:" not in text
        assert "do/set_aside" not in text


@pytest.mark.parametrize("path", [[NO_JSON]], indirect=True, ids=["lines"])
async def test_a_store_that_is_away_leaves_the_error_as_it_was(
    schema: Schema, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> None:
        raise StoreError("away")

    monkeypatch.setattr(
        "millwheel.store.postgres.store.PostgresStore.note_worker_end", away, raising=True
    )
    await fail(pipeline(path), schema, InputError)
    assert schema.query("SELECT count(*) FROM {e}", e="worker_end") == [(0,)]


@pytest.mark.parametrize("path", [[NO_JSON]], indirect=True, ids=["lines"])
async def test_the_newest_ends_stay(schema: Schema, path: Path) -> None:
    await fail(pipeline(path), schema, InputError)
    schema.query(
        "INSERT INTO {e} (at, worker, host, pid, kind, error) SELECT now(), gen_random_uuid(), "
        "'h', 1, 'Fenced', 'x' FROM generate_series(1, %s)",
        KEEP_ENDS + 20,
        e="worker_end",
    )
    await fail(pipeline(path), schema, InputError)
    kept, newest = schema.query(
        "SELECT count(*), (array_agg(kind ORDER BY id DESC))[1] FROM {e}", e="worker_end"
    )[0]
    assert kept == KEEP_ENDS
    assert newest == "InputError"
