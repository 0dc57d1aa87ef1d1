"""``millwheel plan`` and ``millwheel rollback``: a pipeline that is changed by hand, as its owner
would."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from tests.support.shells import Shell
from tests.support.store_sites import Schema

MODULE = """
from datetime import datetime, timedelta

from msgspec import Struct

from millwheel import Computation, Context, JsonLines, Pipeline, Record, Stream, Table
from millwheel.computations import Windowed, count
from millwheel.windows import Pane, Tumbling


class Search(Struct):
    at: datetime
    query: str


class Trend(Struct):
    query: str = ""
    searches: int = 0


class Minute(Struct):
    query: str
    start: datetime
    searches: int


SEARCHES, TRENDS = Stream("searches", Search), Stream("trends", Trend)
MINUTES = Stream("minutes", Pane[int])


class CountSearches(Computation[Search, Trend]):
    writes = (TRENDS,)

    async def process_record(self, record: Record[Search], ctx: Context[Trend]) -> None:
        ctx.state.query = record.value.query
        ctx.state.searches += 1
        ctx.produce(TRENDS, Trend(ctx.state.query, ctx.state.searches))


pipeline = Pipeline("trends")
pipeline.inject(
    SEARCHES, JsonLines("searches.jsonl"), timestamp=lambda s: s.at, lateness=timedelta(seconds=5)
)
pipeline.add(CountSearches(), SEARCHES.by(lambda s: s.query))
pipeline.add(Windowed(Tumbling(minutes=1), count, to=MINUTES), SEARCHES.by(lambda s: s.query))
pipeline.sink(TRENDS, Table("trend", Trend, key=("query",)))
pipeline.sink(
    MINUTES, Table("minute", Minute, key=("query", "start")),
    row=lambda pane: Minute(pane.key, pane.start, pane.value),
)
"""


class Owner:
    """Changes the module and the file, and runs commands."""

    def __init__(self, directory: Path, schema: Schema) -> None:
        self.directory = directory
        self.module = MODULE
        self.shell = Shell(directory, schema.url, "trends")
        self.file = "searches.jsonl"
        self._searches = 0
        self.search()

    def change(self, old: str, new: str) -> None:
        assert old in self.module, old
        self.module = self.module.replace(old, new)
        self._write()

    def back(self) -> None:
        self.module = MODULE
        self._write()

    def _write(self) -> None:
        (self.directory / "trends.py").write_text(self.module)
        # Python takes a file of the same size and second for the one that it has compiled.
        shutil.rmtree(self.directory / "__pycache__", ignore_errors=True)

    def search(self) -> None:
        """One search more, ten seconds later."""
        self._write()
        at = f"2026-01-01T00:{self._searches // 6:02}:{self._searches % 6 * 10:02}Z"
        self._searches += 1
        with (self.directory / self.file).open("a") as file:
            file.write(json.dumps({"at": at, "query": "tea"}) + "\n")

    def run(self, code: int = 0) -> str:
        return self._said(code, "run", "trends:pipeline", "--keep-open")

    def run_until(self, text: str, expected: list[tuple[object, ...]]) -> None:
        """Run until a query gives these rows."""
        running = self.shell.start("run", "trends:pipeline", "--keep-open")
        for _ in range(300):
            with contextlib.suppress(psycopg.errors.UndefinedTable):
                if self.rows(text) == expected:
                    break
            time.sleep(0.1)
        running.end(signal.SIGINT)

    def _said(self, code: int, *words: str) -> str:
        """Both outputs of a command."""
        ended, out, errors = self.shell.start(*words).end()
        assert ended == code, errors
        return out + errors

    def rows(self, text: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.shell.environment["MILLWHEEL_STORE"]) as connection:
            return connection.execute(sql.SQL(text)).fetchall()

    def plan(self, code: int = 0) -> str:
        return self._said(code, "plan", "trends:pipeline")


@pytest.fixture
def owner(tmp_path: Path, new_schema: Callable[[int], Schema]) -> Owner:
    return Owner(tmp_path, new_schema(18))


def test_a_plan_shows_what_a_deploy_does(owner: Owner) -> None:
    assert "is not deployed: this code begins its first generation" in owner.plan()
    owner.shell("migrate", "trends")
    owner.run()
    assert "this code changes nothing that is stored" in owner.plan()

    owner.change("searches: int = 0", 'searches: int = 0\n    last: str | None = "none"')
    owner.change("timedelta(seconds=5)", "timedelta(seconds=7)")
    planned = owner.plan()
    assert "taken, but:  injector 'searches_injector', lateness_seconds" in planned
    assert "table 'trend', column 'last': an additional column" in planned
    assert "needs" not in planned

    owner.search()
    said = owner.run()
    assert said.count("deployed_change") >= 2
    assert "this code changes nothing that is stored" in owner.plan()
    assert owner.rows("SELECT query, searches, last FROM trends.trend") == [("tea", 2, "none")]


def test_the_step_of_a_sink_has_its_label_and_what_can_be_done(owner: Owner) -> None:
    """A sink has neither a name nor a former one."""
    owner.shell("migrate", "trends")
    owner.run()
    owner.change('Table("trend", Trend', 'Table("latest", Trend')
    planned = owner.plan(code=4)
    assert "needs:       step 'sink: trends → trend': a step of a sink, " in planned
    assert "millwheel remove trends trends_to_trend; tables and files of a sink stay" in planned
    assert "taken, but:  step 'sink: trends → latest': an additional" in planned
    for other in ("renamed_from", "name=", "relay"):
        assert other not in planned
    owner.back()
    owner.shell("remove", "trends", "trends_to_trend", "--yes")
    planned = owner.plan(code=4)
    assert "impossible:  step 'sink: trends → trend': a removed step of a sink, " in planned
    assert "give the sink a table of another name" in planned


def test_a_new_version_of_a_stream_is_one_change_and_has_no_views(owner: Owner) -> None:
    """The stream that a sink's step writes is hidden, and changes with the user's stream."""
    owner.shell("migrate", "trends")
    owner.run()
    owner.change(
        'Stream("trends", Trend)', 'Stream("trends", Trend, version=2, migrations={1: lambda o: o})'
    )
    changes = json.loads(owner.shell("plan", "trends:pipeline", "--json"))["changes"]
    assert [(change["where"], change["change"]) for change in changes] == [
        ("stream 'trends'", "a new version of a stream's type")
    ]
    planned = owner.plan()
    assert "stored value is migrated when it is read" in planned
    assert "view" not in planned


def test_another_size_of_windows_is_refused_and_nothing_is_lost(owner: Owner) -> None:
    owner.shell("migrate", "trends")
    owner.run()
    owner.change("Tumbling(minutes=1)", "Tumbling(minutes=2)")
    planned = owner.plan(code=4)
    assert "impossible:  computation 'windowed → minutes', windows: another rule" in planned
    assert '("Tumbling(0:01:00)" → "Tumbling(0:02:00)")' in planned
    refused = owner.run(code=4)
    assert "impossible:  computation 'windowed → minutes', windows: another rule" in refused

    owner.back()
    for _ in range(6):
        owner.search()
    owner.shell("run", "trends:pipeline")
    assert owner.rows("SELECT searches FROM trends.minute ORDER BY start") == [(6,), (1,)]


def test_a_misspelt_field_of_a_key_is_corrected(owner: Owner) -> None:
    """Nothing was processed with the wrong one, so nothing stands under its keys."""
    owner.shell("migrate", "trends")
    owner.change(
        "CountSearches(), SEARCHES.by(lambda s: s.query)",
        "CountSearches(), SEARCHES.by(lambda s: s.qury)",
    )
    assert "has no attribute 'qury'" in owner.run(code=5)
    owner.back()
    assert "another key extractor" in owner.plan()
    owner.run()
    assert owner.rows("SELECT query, searches FROM trends.trend") == [("tea", 1)]


def test_a_renamed_class_keeps_its_state(owner: Owner) -> None:
    owner.shell("migrate", "trends")
    owner.run()
    owner.change("CountSearches", "FollowSearches")
    planned = owner.plan(code=4)
    assert 'say so: renamed_from="count_searches"' in planned
    added = "FollowSearches(), SEARCHES.by(lambda s: s.query)"
    owner.change(added, f'{added}, renamed_from="count_searches"')
    assert "another name, by `renamed_from`" in owner.plan()
    owner.search()
    owner.run()
    assert owner.rows("SELECT query, searches FROM trends.trend") == [("tea", 2)]
    assert owner.rows("SELECT searches FROM trends.state_of_follow_searches") == [(2,)]
    views = "SELECT FROM pg_views WHERE viewname = 'state_of_count_searches'"
    assert owner.rows(views) == []


def test_former_code_is_deployed_again_by_a_command(owner: Owner) -> None:
    owner.shell("migrate", "trends")
    owner.run()
    said = owner.shell("rollback", "trends:pipeline", code=2)
    assert "is not that of a former generation" in said
    owner.change("timedelta(seconds=5)", "timedelta(seconds=7)")
    owner.search()
    owner.run()
    owner.back()
    plan = json.loads(owner.shell("plan", "trends:pipeline", "--json"))
    assert (plan["deployed"], plan["former"], plan["refused"]) == (2, 1, False)
    assert [change["where"] for change in plan["changes"]] == [
        "injector 'searches_injector', lateness_seconds"
    ]
    assert "generation 3 is deployed" in owner.shell("rollback", "trends:pipeline")
    assert "this code changes nothing that is stored" in owner.plan()
    owner.run()
    assert owner.rows("SELECT query, searches FROM trends.trend") == [("tea", 2)]


@pytest.mark.parametrize("follow", [False, True], ids=["read once", "followed"])
def test_a_file_at_another_path_continues_and_another_file_is_refused(
    owner: Owner, follow: bool
) -> None:
    if follow:
        owner.change('JsonLines("searches.jsonl")', 'JsonLines("searches.jsonl", follow=True)')
    owner.shell("migrate", "trends")
    for _ in range(3):
        owner.search()
    rows = "SELECT query, searches FROM trends.trend"
    owner.run_until(rows, [("tea", 4)])

    (owner.directory / "logs").mkdir()
    (owner.directory / "searches.jsonl").rename(owner.directory / "logs" / "today.jsonl")
    owner.file = "logs/today.jsonl"
    owner.change("searches.jsonl", "logs/today.jsonl")
    assert "other paths of the same files" in owner.plan()
    owner.search()
    owner.run_until(rows, [("tea", 5)])
    assert owner.rows(rows) == [("tea", 5)]

    (owner.directory / "link.jsonl").symlink_to("logs/today.jsonl")
    owner.change("logs/today.jsonl", "link.jsonl")
    assert "other paths of the same files" in owner.plan()
    owner.search()
    owner.run_until(rows, [("tea", 6)])

    owner.change("link.jsonl", "other.jsonl")
    (owner.directory / "other.jsonl").write_text(
        '{"at": "2026-01-01T00:00:00Z", "query": "coffee"}\n' * 20
    )
    assert "other paths of the same files" in owner.plan()
    refused = owner.run(code=5)
    assert "other.jsonl" in refused
    assert owner.rows(rows) == [("tea", 6)]
