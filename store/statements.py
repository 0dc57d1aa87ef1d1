"""SQL files to statements: one file, one statement, identifiers put in by psycopg's composer."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from importlib import resources

from psycopg import sql

BUCKETED = (
    "commit_record", "state_change", "timer_change", "production", "straggler", "seen_record",
)  # fmt: skip
"""The parents of bucket tables; a bucket of seen ids of a source has `seen_record` alone."""

TABLES = (
    *BUCKETED, "bucket", "computation", "dead_letter", "fold", "generation", "incarnation",
    "key_interval", "log", "peer_secret", "pipeline", "placement_event", "state", "stream", "timer",
    "worker",
)  # fmt: skip
"""The names in `millwheel.store.schema`, which takes 0.13 s to import; a test compares."""

FENCE = "fence_and_record"
PARAMETER = re.compile(r"%\((\w+)\)s")

Part = tuple[str, tuple[tuple[str, str], ...]]
"""The name of a statement, and the tables that fill its further placeholders."""


READ_COMMITTED = r"-c default_transaction_isolation=read\ committed"
"""For the options of a connection: whoever has waited for a lock sees what came of it, whatever the
database's default is."""

KEPT = 500
"""Statements that are kept ready; the tables of buckets come and go."""


@cache
def _texts() -> dict[str, str]:
    """All files in ``sql/`` and ``sql/views/``, by name, without their comments: psycopg keeps what it
    found out about a statement only up to 4,096 characters.

    They are read together: a running worker opens no file for a statement, so that one that has no
    file descriptor left can still commit, and one whose package was upgraded in place runs no
    statement of the new code.
    """
    found = {}
    folder = resources.files("millwheel.store") / "sql"
    for prefix, files in (("", folder), ("views/", folder / "views")):
        for file in files.iterdir():
            if file.name.endswith(".sql"):
                lines = file.read_text("utf-8").splitlines()
                found[prefix + file.name.removesuffix(".sql")] = "\n".join(
                    line for line in lines if not line.lstrip().startswith("--")
                )
    return found


def text_of(name: str) -> str:
    """The text of ``sql/<name>.sql`` without the comments."""
    return _texts()[name]


class Statements:
    """The statements of one pipeline's schema, ready for psycopg."""

    def __init__(self, schema: str) -> None:
        _texts()
        self.schema = schema
        self._tables = {name: sql.Identifier(schema, name) for name in TABLES}
        self._composed = lru_cache(maxsize=KEPT)(self._compose)
        self._joined = lru_cache(maxsize=KEPT)(self._join)

    def table(self, name: str) -> sql.Identifier:
        """A table of the schema, quoted."""
        return sql.Identifier(self.schema, name)

    def get(self, name: str, **tables: str) -> str:
        """The statement in ``sql/<name>.sql``; `tables` fill its further placeholders."""
        return self._composed((name, tuple(sorted(tables.items()))))

    def together(self, parts: tuple[Part, ...]) -> str:
        """Several of them as one statement, which is a transaction of its own.

        Each is (name, tables), as for `get`; its parameter ``rows`` is ``rows_0``, ``rows_1``, ...
        by its place, and the same with any other. Those that fence run before the others.
        """
        return self._joined(parts)

    def _compose(self, part: Part) -> str:
        name, tables = part
        names: dict[str, sql.Composable] = dict(self._tables)
        names.update({placeholder: self.table(table) for placeholder, table in tables})
        names.setdefault("schema", sql.Identifier(self.schema))
        return sql.SQL(text_of(name)).format(**names).as_string(None)

    def _join(self, parts: tuple[Part, ...]) -> str:
        named = ",\n".join(
            f"part_{place} AS (\n{_numbered(self._composed(part), place)})"
            for place, part in enumerate(parts)
        )
        fences = " + ".join(
            f"(SELECT count(*) FROM part_{place})"  # noqa: S608, a number
            for place, (name, _) in enumerate(parts)
            if name == FENCE
        )
        return f"WITH {named}\nSELECT {fences}"


def _numbered(text: str, place: int) -> str:
    """A statement with the place at the end of each parameter's name."""
    return PARAMETER.sub(rf"%(\1_{place})s", text)
