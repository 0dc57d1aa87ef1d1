"""Readers follow a switch from one pipeline to another: the old or the new, never a mixture."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from millwheel.errors import StoreUnavailable, UsageError
from millwheel.services.run import Run
from millwheel.store.console.asking import Actor
from millwheel.store.console.inspection import inspect
from millwheel.store.console.migrate import migrate
from millwheel.store.console.request_log import RequestLog
from millwheel.store.copies.publishing import list_published, publish
from millwheel.store.copies.switching import Takeover, foresee_switch, switch
from tests.support.store_sites import Schema
from tests.support.visit_files import pipeline, write

pytestmark = pytest.mark.newest

MARKS = ("marks", "more_marks")


@pytest.fixture
async def pair(schema: Schema, tmp_path: Path) -> Schema:
    """Two pipelines at the end of the same input, published in `out`, with the tables of sinks and
    two tables that say whose they are."""
    for name in ("wheel", "wheel2"):
        await run(schema, tmp_path, name)
        for table in MARKS:
            place = sql.Identifier(name, table)
            execute(schema, "CREATE TABLE {} (whose text)", place)
            execute(schema, "INSERT INTO {} VALUES (%s)", place, params=[name])
    publish(schema.url, "wheel", "out")
    return schema


async def run(schema: Schema, directory: Path, name: str, rows: int = 200, **how: Any) -> None:
    if name != schema.name:
        migrate(schema.url, name)
    await Run(pipeline(name, write(directory, rows)[0]), schema.url, **how).run()


def execute(
    schema: Schema, text: str, *names: sql.Composable, params: Any = None
) -> list[tuple[Any, ...]]:
    with psycopg.connect(schema.url, autocommit=True) as connection:
        cursor = connection.execute(sql.SQL(text).format(*names), params)
        return cursor.fetchall() if cursor.description else []


def leads_to(schema: Schema) -> dict[str, str]:
    return {one.name: one.pipeline for one in list_published(schema.url)}


def withheld(schema: Schema) -> dict[str, bool]:
    return {
        name: execute(schema, "SELECT withholds FROM {}", sql.Identifier(name, "pipeline"))[0][0]
        for name in ("wheel", "wheel2")
    }


QUERY = """
SELECT a.whose, b.whose, (SELECT count(*) FROM out.minute)
FROM out.marks a CROSS JOIN out.more_marks b
"""
REVERSED = """
SELECT a.whose, b.whose, (SELECT count(*) FROM out.minute)
FROM out.more_marks a CROSS JOIN out.marks b
"""


class Readers:
    """Threads that read in a loop, and the statements that each has seen."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._ends = threading.Event()
        self.errors: list[BaseException] = []
        self.seen: Counter[tuple[Any, ...]] = Counter()
        self.longest = 0.0
        self._threads = [
            threading.Thread(target=self._read, args=args)
            for args in ((QUERY, True), (QUERY, False), (REVERSED, False))
        ]

    def _read(self, query: str, prepared: bool) -> None:
        try:
            with psycopg.connect(self._url, autocommit=True) as connection:
                while not self._ends.is_set():
                    began = time.monotonic()
                    (row,) = connection.execute(query, prepare=prepared).fetchall()
                    self.longest = max(self.longest, time.monotonic() - began)
                    self.seen[row] += 1
        except BaseException as error:
            self.errors.append(error)

    @contextmanager
    def reading(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._ends.set()
            for thread in self._threads:
                thread.join()


@pytest.mark.parametrize("switches", [12, pytest.param(50, marks=pytest.mark.soak)])
def test_readers_see_the_old_or_the_new(pair: Schema, switches: int) -> None:
    rows = execute(pair, "SELECT count(*) FROM wheel.minute")[0][0]
    readers = Readers(pair.url)
    longest = 0.0
    with readers.reading():
        for number in range(switches):
            names = ("wheel", "wheel2") if number % 2 == 0 else ("wheel2", "wheel")
            longest = max(longest, switch(pair.url, Takeover(*names)).blocked_milliseconds)
            assert {*leads_to(pair).values()} == {names[1]}
            assert withheld(pair) == {names[0]: True, names[1]: False}
    assert readers.errors == []
    assert {*readers.seen} == {("wheel", "wheel", rows), ("wheel2", "wheel2", rows)}
    assert sum(readers.seen.values()) > 2 * switches
    assert longest < 1000 * LONGEST_WAIT
    assert readers.longest < LONGEST_WAIT


def test_a_name_of_a_switch_is_led_back(pair: Schema) -> None:
    """Names of another schema that lead to the successor stay with it, if only one is switched."""
    publish(pair.url, "wheel2", "trial", ["minute"])
    switch(pair.url, Takeover("wheel", "wheel2"))
    switch(pair.url, Takeover("wheel2", "wheel", ["out"]))
    assert {one.words: one.pipeline for one in list_published(pair.url)} == {
        "out.marks": "wheel",
        "out.minute": "wheel",
        "out.more_marks": "wheel",
        "trial.minute": "wheel2",
    }


def test_both_logs_have_the_switch(pair: Schema) -> None:
    switch(pair.url, Takeover("wheel", "wheel2"), actor=Actor("ada", "the new code is right"))
    with inspect(pair.url) as inspection:
        for name in ("wheel", "wheel2"):
            (entry, *_) = RequestLog(inspection.connection, name).entries(1)
            assert (entry.verb, entry.actor, entry.reason) == (
                "switch", "ada", "the new code is right"
            )  # fmt: skip


# -- refusals -----------------------------------------------------------------------------


def refused(schema: Schema, *args: Any) -> str:
    before = leads_to(schema), withheld(schema)
    with pytest.raises(UsageError) as caught:
        switch(schema.url, Takeover(*args), wait_seconds=0.0)
    assert (leads_to(schema), withheld(schema)) == before, "it has changed something"
    return str(caught.value)


def test_a_successor_that_is_behind(pair: Schema, tmp_path: Path) -> None:
    """Its watermark counts when the names are locked: a switch waits until it has caught up."""
    promised = "UPDATE {} SET low_watermark = %s"
    place = sql.Identifier("wheel2", "commit_record")
    ended = execute(pair, "SELECT max(low_watermark) FROM {}", place)[0][0]
    newest = execute(
        pair, "SELECT max((position ->> 'seen')::bigint) FROM {}", place
    )[0][0]  # fmt: skip
    execute(pair, promised, place, params=[newest - 7_200_000_000])
    found = refused(pair, "wheel", "wheel2")
    assert "'wheel2' is behind 'wheel' by 2 h 0 min of event time and the end of the input" in found
    assert "millwheel reprocess wheel --as wheel2 --wait" in found
    assert foresee_switch(pair.url, Takeover("wheel", "wheel2")).is_behind
    switch(pair.url, Takeover("wheel", "wheel2"), anyway=True)
    switch(pair.url, Takeover("wheel2", "wheel"))
    waiting = threading.Timer(0.5, execute, (pair, promised, place), {"params": [ended]})
    waiting.start()
    done = switch(pair.url, Takeover("wheel", "wheel2"))
    waiting.join()
    assert done.attempts > 1
    assert {*leads_to(pair).values()} == {"wheel2"}


PROMISED = "UPDATE {} SET low_watermark = %s"
FIRED = "UPDATE {} SET input_watermark = %s"


def test_a_successor_has_closed_the_windows_that_readers_have_seen(pair: Schema) -> None:
    """One interval of the former may be ahead of its least low watermark."""
    place = sql.Identifier("wheel2", "commit_record")
    (ended,) = execute(pair, "SELECT max(low_watermark) FROM {}", place)[0]
    for name in ("wheel", "wheel2"):
        behind = ended - 60_000_000
        execute(pair, PROMISED, sql.Identifier(name, "commit_record"), params=[behind])
    with pytest.raises(UsageError, match=r"in no moment as far as the fastest.*--drain"):
        switch(pair.url, Takeover("wheel", "wheel2"), wait_seconds=1.0)
    assert {*leads_to(pair).values()} == {"wheel"}
    waiting = threading.Timer(0.5, execute, (pair, PROMISED, place), {"params": [ended]})
    waiting.start()
    assert switch(pair.url, Takeover("wheel", "wheel2")).attempts > 1
    waiting.join()


def test_a_busy_pipeline_is_followed_while_its_readers_wait_a_moment(pair: Schema) -> None:
    """Its successor is always a little behind."""
    former, new = (sql.Identifier(name, "commit_record") for name in ("wheel", "wheel2"))
    (ended,) = execute(pair, "SELECT max(low_watermark) FROM {}", new)[0]
    execute(pair, PROMISED, former, params=[0])
    ends = threading.Event()

    def run_ahead() -> None:
        number = 0
        while not ends.is_set():
            execute(pair, FIRED, former, params=[ended + number + 3])
            execute(pair, PROMISED, new, params=[ended + number])
            number += 1

    running = threading.Thread(target=run_ahead)
    running.start()
    try:
        assert switch(pair.url, Takeover("wheel", "wheel2"), wait_seconds=20).attempts > 1
    finally:
        ends.set()
        running.join()
    assert {*leads_to(pair).values()} == {"wheel2"}


def test_words_that_do_not_fit(pair: Schema) -> None:
    assert "cannot follow itself" in refused(pair, "wheel", "wheel")
    assert "no pipeline 'wheel3'" in refused(pair, "wheel", "wheel3")
    assert "millwheel fork wheel --from one --as NEW" in refused(pair, "wheel", "wheel@one")
    assert "lead to 'wheel' already" in refused(pair, "wheel2", "wheel")
    assert "no name in 'elsewhere' leads to" in refused(pair, "wheel", "wheel2", ["elsewhere"])
    migrate(pair.url, "wheel3")
    assert "'wheel3' was never run: start its workers" in refused(pair, "wheel", "wheel3")


def test_a_table_that_the_successor_lacks(pair: Schema) -> None:
    execute(pair, "DROP TABLE wheel2.marks")
    found = refused(pair, "wheel", "wheel2")
    assert "has no table 'marks', which readers use as out.marks; it has: minute, " in found


# -- other columns ------------------------------------------------------------------------


def test_new_columns_come_last_and_dependent_objects_stay(pair: Schema) -> None:
    execute(pair, "CREATE VIEW public.report AS SELECT * FROM out.marks")
    execute(pair, "DROP TABLE wheel2.marks")
    execute(pair, "CREATE TABLE wheel2.marks (note text, whose text)")
    execute(pair, "INSERT INTO wheel2.marks VALUES ('new', 'wheel2')")
    (changed,) = [
        one for one in foresee_switch(pair.url, Takeover("wheel", "wheel2")).names if one.changes
    ]  # fmt: skip
    assert (changed.name, changed.changes) == ("out.marks", ("new column note",))
    switch(pair.url, Takeover("wheel", "wheel2"))
    assert execute(pair, "SELECT * FROM out.marks") == [("wheel2", "new")]
    assert execute(pair, "SELECT * FROM public.report") == [("wheel2",)]
    execute(pair, "DROP VIEW public.report")


def test_a_view_that_is_made_again_keeps_rights_and_comments(pair: Schema) -> None:
    with psycopg.connect(pair.url, autocommit=True) as connection:
        for role in ("reader_of_marks", "owner_of_marks"):
            connection.execute(f"CREATE ROLE {role}")
        try:
            connection.execute("GRANT USAGE ON SCHEMA out TO reader_of_marks")
            connection.execute("GRANT CREATE, USAGE ON SCHEMA out TO owner_of_marks")
            connection.execute("GRANT USAGE ON SCHEMA wheel TO owner_of_marks")
            connection.execute("GRANT SELECT ON wheel.marks TO owner_of_marks")
            connection.execute("ALTER VIEW out.marks SET (security_barrier = true)")
            connection.execute("ALTER VIEW out.marks OWNER TO owner_of_marks")
            connection.execute("GRANT SELECT ON out.marks TO reader_of_marks WITH GRANT OPTION")
            connection.execute("COMMENT ON COLUMN out.marks.whose IS 'it''s whose'")
            connection.execute("DROP TABLE wheel2.marks")
            connection.execute("CREATE TABLE wheel2.marks (more integer, whose varchar(9))")
            connection.execute("INSERT INTO wheel2.marks VALUES (1, 'wheel2')")
            before = connection.execute(RIGHTS).fetchall()
            (changed, *_) = foresee_switch(pair.url, Takeover("wheel", "wheel2")).names
            assert changed.changes == (
                'column whose is character varying(9) COLLATE "default", not text COLLATE '
                '"default"',
                "new column more",
            )
            switch(pair.url, Takeover("wheel", "wheel2"))
            after = connection.execute(RIGHTS).fetchall()
            assert after == before
            assert "reader_of_marks=r*/owner_of_marks" in str(after)
            connection.execute("SET ROLE reader_of_marks")
            assert connection.execute("SELECT * FROM out.marks").fetchall() == [(1, "wheel2")]
            connection.execute("RESET ROLE")
        finally:
            for role in ("reader_of_marks", "owner_of_marks"):
                connection.execute(f"DROP OWNED BY {role}")
                connection.execute(f"DROP ROLE {role}")


RIGHTS = """
SELECT c.relacl::text, c.reloptions, pg_get_userbyid(c.relowner),
       obj_description(c.oid, 'pg_class'),
       (SELECT col_description(c.oid, a.attnum) FROM pg_attribute AS a
        WHERE a.attrelid = c.oid AND a.attname = 'whose')
FROM pg_class AS c WHERE c.oid = 'out.marks'::regclass
"""


def test_objects_that_use_a_view_are_named_before_it_is_made_again(pair: Schema) -> None:
    execute(pair, "CREATE VIEW public.report AS SELECT * FROM out.marks")
    execute(
        pair, "CREATE FUNCTION public.one() RETURNS \"out\".marks LANGUAGE sql AS 'SELECT NULL'"
    )
    execute(pair, "ALTER TABLE wheel2.marks RENAME COLUMN whose TO owner")
    found = refused(pair, "wheel", "wheel2")
    assert (
        "out.marks (without column whose; new column owner): function public.one(), "
        "view public.report" in found
    )
    execute(pair, "DROP VIEW public.report; DROP FUNCTION public.one()")
    switch(pair.url, Takeover("wheel", "wheel2"))
    assert execute(pair, "SELECT owner FROM out.marks") == [("wheel2",)]


def test_views_of_users_are_told_to_stay(pair: Schema) -> None:
    execute(pair, "CREATE VIEW public.report AS SELECT * FROM wheel.minute")
    assert foresee_switch(pair.url, Takeover("wheel", "wheel2")).staying == ("public.report",)


# -- readers that stay, and processes that are killed --------------------------------------


def test_a_long_reader_delays_the_switch_and_no_other_reader(pair: Schema) -> None:
    with psycopg.connect(pair.url, application_name="a long report") as reader:
        reader.execute("SELECT * FROM out.marks").fetchall()
        others = Readers(pair.url)
        with others.reading():
            with pytest.raises(StoreUnavailable) as caught:
                switch(pair.url, Takeover("wheel", "wheel2"), wait_seconds=1.0)
            assert "a long report" in str(caught.value)
            assert f"process {reader.info.backend_pid}" in str(caught.value)
            assert {*leads_to(pair).values()} == {"wheel"}
            ending = threading.Timer(0.5, reader.rollback)
            ending.start()
            done = switch(pair.url, Takeover("wheel", "wheel2"))
            ending.join()
    assert done.attempts > 1
    assert others.errors == []
    assert done.blocked_milliseconds < 1000 * LONGEST_WAIT
    assert others.longest < LONGEST_WAIT
    assert {whose for row in others.seen for whose in row[:2]} == {"wheel", "wheel2"}


LONGEST_WAIT = 0.5
"""Seconds; the promise is a tenth, on a server that has nothing else to do."""

SWITCHING = """
import sys
from millwheel.errors import MillwheelError
from millwheel.store.copies.switching import Takeover, switch

names = "wheel", "wheel2"
while True:
    try:
        switch(sys.argv[1], Takeover(*names))
    except MillwheelError:
        pass  # a reader holds a name, or the names lead there already
    names = names[::-1]
    print(flush=True)
"""


@pytest.mark.soak
@pytest.mark.parametrize("kills", [20])
def test_a_switch_that_is_killed_leaves_the_old_or_the_new(pair: Schema, kills: int) -> None:
    chance = random.Random(7)
    readers = Readers(pair.url)
    found = Counter[str]()
    switch(pair.url, Takeover("wheel", "wheel2"))  # before, both may write outside
    with readers.reading():
        while found.total() < kills or len(found) < 2:  # the old and the new were met
            process = subprocess.Popen(
                [sys.executable, "-c", SWITCHING, pair.url], stdout=subprocess.PIPE
            )
            assert process.stdout is not None
            process.stdout.readline()  # it has begun
            time.sleep(chance.random() * 0.2)
            process.kill()
            process.communicate()
            (whose,) = {*leads_to(pair).values()}
            other = {"wheel": "wheel2", "wheel2": "wheel"}[whose]
            found[whose] += 1
            assert withheld(pair) == {whose: False, other: True}
    assert readers.errors == []
    assert all(first == second for first, second, _ in readers.seen)
