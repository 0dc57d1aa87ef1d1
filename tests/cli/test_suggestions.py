"""A name that does not exist is answered with the one that was probably meant."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from millwheel.core.suggestion import closest, did_you_mean, with_suggestion
from tests.support.product import product_files
from tests.support.shells import MODULE, Shell, lines
from tests.support.store_sites import Schema

SETTINGS = """
from millwheel import Settings
settings = Settings(lease_second=5)
"""
INJECTED = """
from millwheel import JsonLines, Pipeline, Stream
pipeline = Pipeline("other")
pipeline.inject(Stream("a", str), JsonLines("x.jsonl"), on_eror="fail")
"""
QUERY = "INSERT INTO shouted SELECT text FROM lnes;"

WITHOUT_A_STORE = {
    "run whel:pipeline": "Did you mean wheel?",
    "run wheel:pipelin": "Did you mean pipeline?",
    "graph settings_typo:pipeline": "Did you mean lease_seconds?",
    "graph inject_typo:pipeline": "Did you mean on_error?",
    "status --log-format jsn": "'jsn' is not one of",
}
WITH_A_STORE = {
    "status wordcuont": "Did you mean wordcount?",
    "sql 'SELECT 1' -p wordcuont": "Did you mean wordcount?",
    "pause wordcount lines_injectr": "Did you mean lines_injector?",
    "state get wrods a": "Did you mean words?",
    "state set wrods a --value {}": "Did you mean words?",
    "timers fire wrods a": "Did you mean words?",
    "set-aside lines_injectr 3": "Did you mean lines_injector?",
    "dead-letters list --computation wrods": "Did you mean words?",
    "dead-letters list --group-by error --computation wrods": "Did you mean words?",
    "dead-letters export --computation wrods": "Did you mean words?",
    "dead-letters discard --computation wrods --yes": "Did you mean words?",
    "remove wordcount wrods --yes": "Did you mean words?",
    "sql 'SELECT * FROM state_of_wrods'": "Did you mean state_of_words?",
    "sql 'SELECT * FROM wordcount.contus'": "Did you mean wordcount.counts?",
    "sql \"SELECT state_off('words', '1')\"": "Did you mean state_of?",
    "sql 'SELECT valu FROM counts'": 'Perhaps you meant to reference the column "counts.value"',
    "query submit wheel:pipeline q.sql": "Did you mean lines?",
    "query drop wheel:pipeline shout --yes": "Did you mean shouted?",
    "query explain wheel:pipeline shout": "Did you mean shouted?",
}


def test_the_nearest_name_is_found_in_any_case_and_none_if_none_is_near() -> None:
    assert closest("WRODS", ["lines", "words"]) == "words"
    assert closest("wrods", ["lines", "WORDS"]) == "WORDS"
    assert closest("zzz", ["lines", "words"]) is None
    assert closest("words", []) is None
    assert did_you_mean("wrods", ["words"]) == "Did you mean words?"
    assert with_suggestion("no x", "zzz", ["words"]) == "no x"
    assert with_suggestion("no wrods", "wrods", ["words"]) == "no wrods. Did you mean words?"


@pytest.fixture
def shell(tmp_path: Path, new_schema: Callable[[int], Schema]) -> Shell:
    (tmp_path / "wheel.py").write_text(MODULE)
    (tmp_path / "settings_typo.py").write_text(SETTINGS)
    (tmp_path / "inject_typo.py").write_text(INJECTED)
    (tmp_path / "q.sql").write_text(QUERY)
    made = Shell(tmp_path, new_schema(18).url, "wordcount")
    made("migrate", "wordcount")
    made("drop", "wheel", "--yes")
    return made


def test_each_unknown_name_is_answered(shell: Shell) -> None:
    shell.write(lines(3))
    shell("run", "wheel:pipeline", "--keep-open")
    (shell.directory / "shouted.sql").write_text("INSERT INTO loud SELECT text FROM lines;")
    shell("query", "submit", "wheel:pipeline", "shouted.sql")
    expected = WITHOUT_A_STORE | WITH_A_STORE
    started = {words: shell.start(*shlex.split(words)) for words in expected}
    told = {words: running.end() for words, running in started.items()}
    wrong = {
        words: (code, stderr)
        for words, (code, _, stderr) in told.items()
        if expected[words] not in stderr or code not in (2, 6)
    }
    assert wrong == {}


def test_one_function_finds_what_was_meant() -> None:
    users = [
        path.name for path in product_files() if "get_close_matches" in path.read_text("utf-8")
    ]
    assert users == ["suggestion.py"]
