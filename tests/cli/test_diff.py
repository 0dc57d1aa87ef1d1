"""``millwheel diff``: output and exit codes. `tests/store/test_compare.py` has the comparison."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner, Result

from millwheel.cli.main import app
from millwheel.store.console.migrate import migrate
from tests.support.shells import Shell
from tests.support.store_sites import Schema
from tests.support.terminals import Terminal

pytestmark = pytest.mark.newest


class Pair:
    """Two pipelines with a table of 30 rows each."""

    def __init__(self, url: str) -> None:
        self.url = url
        for name in ("blue", "green"):
            migrate(url, name)
            self.run(
                f"CREATE TABLE {name}.prices (id int PRIMARY KEY, word text, cents int); "
                f"INSERT INTO {name}.prices SELECT n, 'w' || n, n FROM generate_series(1, 30) AS n"
            )

    def run(self, text: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(text.encode())

    def diff(self, *words: str) -> Result:
        return CliRunner().invoke(app, ["diff", "blue", "green", *words, "--store", self.url])


@pytest.fixture
def pair(new_schema: Callable[[int], Schema]) -> Pair:
    return Pair(new_schema(18).url)


def test_equal_pipelines_end_with_0(pair: Pair) -> None:
    done = pair.diff()
    assert done.exit_code == 0, done.output
    assert "blue and green are equal\n" in done.stdout
    assert "table prices |   30 |         0 |          0 |      0 |        0" in done.stdout


def test_rows_that_differ_are_shown_and_the_exit_code_is_1(pair: Pair) -> None:
    pair.run(
        "UPDATE green.prices SET cents = NULL WHERE id = 7; DELETE FROM blue.prices WHERE id = 9"
    )
    pair.run("CREATE TABLE green.fresh (id int)")
    done = pair.diff()
    assert done.exit_code == 1
    assert "blue and green differ in 2 rows" in done.stdout
    assert "only green has, and so not compared: table fresh" in done.stdout
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines[-5:] == [
        "------+---------+----------+-------",
        "id 7 | word | w7 | w7",
        "| * cents | 7 | NULL",
        "id 9 | * word | (no row) | w9",
        "| * cents | (no row) | 9",
    ]


def test_json_tells_the_kinds_of_difference_apart(pair: Pair) -> None:
    pair.run("UPDATE green.prices SET cents = 0 WHERE id = 7")
    done = pair.diff("--json", "--table", "prices")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert (found["verdict"], found["same_place"]) == ("differs", True)
    (part,) = found["parts"]
    assert {key: part[key] for key in ("what", "name", "compared", "differing")} == {
        "what": "table", "name": "prices", "compared": 30, "differing": 1,
    }  # fmt: skip
    (row,) = part["rows"]
    assert (row["a"], row["b"], row["columns"]) == (
        {"word": "w7", "cents": "7"}, {"word": "w7", "cents": "0"}, ["cents"],
    )  # fmt: skip


def test_texts_of_strangers_do_not_reach_the_terminal_as_they_are(pair: Pair) -> None:
    pair.run("UPDATE green.prices SET word = E'\\x1b[2Jx\\ny' WHERE id = 7")
    done = pair.diff()
    assert "\x1b" not in done.stdout
    assert "\\x1b[2Jx\\ny" in done.stdout


def test_a_terminal_shows_the_part_that_is_compared(pair: Pair, tmp_path: Path) -> None:
    done = Terminal(80).run(Shell(tmp_path, pair.url, "blue"), "diff", "blue", "green")
    assert done.code == 0
    assert "table prices: 0 rows compared" in done.raw
    assert not [line for line in done.screen.lines if "rows compared" in line], "it is drawn over"
    assert " table prices |   30 |         0 |          0 |      0 |        0" in done.screen.lines


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--table", "price"], "Did you mean prices?"),
        (["--time", "prices"], "--time prices: give TABLE.COLUMN"),
        (["--at", "noon"], "--at noon: give a time in ISO 8601"),
        (["--at", "2024-01-01T00:00"], "has no time zone"),
    ],
)
def test_wrong_words_end_with_2(pair: Pair, words: list[str], message: str) -> None:
    done = pair.diff(*words)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())
