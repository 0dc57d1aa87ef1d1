"""Each version of Postgres understands every statement of the engine, the seldom used ones too."""

from __future__ import annotations

import string

import psycopg
from psycopg import pq

from millwheel.store.console.views import NAMES, VIEWS
from millwheel.store.postgres.statements import PARAMETER, TABLES, Statements, _texts
from tests.support.store_sites import Schema

PARTS = {"this_incarnation", "recovered_at", "matching_letters", "letters_of_owners"}
KNOWN = {*TABLES, *VIEWS, *NAMES, *PARTS, "schema"}
NAMED_WHEN_RUN = 159
"""So many are views, which `schema` has made, or have a part that only the code knows, as those of
copies (tests/store/test_copied_files.py runs the seven for other stores and files). The remedies of
`millwheel doctor` are among them: tests/cli/test_doctor.py runs those."""


def as_protocol(text: str) -> bytes:
    """The statement with $1, $2 in place of named parameters."""
    numbers: dict[str, str] = {}
    numbered = PARAMETER.sub(lambda m: numbers.setdefault(m[1], f"${len(numbers) + 1}"), text)
    return numbered.replace("%%", "%").encode()


def test_every_statement_is_understood(schema: Schema) -> None:
    statements = Statements(schema.name)
    left_out = 0
    with psycopg.connect(schema.url, autocommit=True) as connection:
        for name, text in _texts().items():
            if name == "matching_letters":  # the end of others
                continue
            parts = {part for _, part, _, _ in string.Formatter().parse(text) if part}
            if name.startswith("views/") or not parts <= KNOWN:
                left_out += 1
                continue
            views = {part: part for part in parts & {*VIEWS, *NAMES}}
            answer = connection.pgconn.prepare(b"", as_protocol(statements.get(name, **views)))
            assert answer.status == pq.ExecStatus.COMMAND_OK, (name, answer.get_error_message())
    assert left_out <= NAMED_WHEN_RUN
