"""SQL files to statements: one file, one statement, identifiers put in by psycopg's composer."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

from psycopg import sql

BUCKETED = (
    "commit_record", "state_change", "timer_change", "production", "straggler", "seen_record",
)  # fmt: skip
"""The parents of bucket tables; a bucket of seen ids of a source has `seen_record` alone."""

TABLES = (
    *BUCKETED, "bucket", "computation", "dead_letter", "fold", "generation", "key_interval", "log",
    "pipeline", "placement_event", "state", "stream", "timer", "worker",
)  # fmt: skip
"""The names in `millwheel.store.schema`, which takes 0.13 s to import; a test compares."""

FENCE = "fence_and_record"
PARAMETER = re.compile(r"%\((\w+)\)s")

Part = tuple[str, tuple[tuple[str, str], ...]]
"""The name of a statement, and the tables that fill its further placeholders."""


@cache
def text_of(name: str) -> str:
    """The text of ``sql/<name>.sql``."""
    return (resources.files("millwheel.store") / "sql" / f"{name}.sql").read_text("utf-8")


class Statements:
    """The statements of one pipeline's schema, ready for psycopg."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self._tables = {name: sql.Identifier(schema, name) for name in TABLES}
        self._ready: dict[tuple[str, tuple[tuple[str, str], ...]], str] = {}
        self._together: dict[tuple[Part, ...], str] = {}

    def table(self, name: str) -> sql.Identifier:
        """A table of the schema, quoted."""
        return sql.Identifier(self.schema, name)

    def get(self, name: str, **tables: str) -> str:
        """The statement in ``sql/<name>.sql``; `tables` fill its further placeholders."""
        key = (name, tuple(sorted(tables.items())))
        statement = self._ready.get(key)
        if statement is None:
            names: dict[str, sql.Composable] = dict(self._tables)
            names.update({placeholder: self.table(table) for placeholder, table in tables.items()})
            names.setdefault("schema", sql.Identifier(self.schema))
            statement = sql.SQL(text_of(name)).format(**names).as_string(None)
            self._ready[key] = statement
        return statement

    def together(self, parts: tuple[Part, ...]) -> str:
        """Several of them as one statement, which is a transaction of its own.

        Each is (name, tables), as for `get`; its parameter ``rows`` is ``rows_0``, ``rows_1``, ...
        by its place, and the same with any other. Those that fence run before the others.
        """
        statement = self._together.get(parts)
        if statement is None:
            texts = [self.get(name, **dict(tables)) for name, tables in parts]
            named = ",\n".join(
                f"part_{place} AS (\n{_numbered(text, place)})" for place, text in enumerate(texts)
            )
            fences = " + ".join(
                f"(SELECT count(*) FROM part_{place})"  # noqa: S608, a number
                for place, (name, _) in enumerate(parts)
                if name == FENCE
            )
            statement = self._together[parts] = f"WITH {named}\nSELECT {fences}"
        return statement


def _numbered(text: str, place: int) -> str:
    """A statement with the place at the end of each parameter's name."""
    return PARAMETER.sub(rf"%(\1_{place})s", text)
