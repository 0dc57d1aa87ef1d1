"""The statements of the store: one file in a folder of ``store/sql`` each, with identifiers put in
by psycopg."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib import resources
from string import Formatter

from psycopg import sql

BUCKETED = (
    "commit_record", "state_change", "timer_change", "production", "straggler", "seen_record",
    "seen_run",
)  # fmt: skip
"""The parents of bucket tables. A bucket of a source's seen ids has those of `SEEN` only."""

SEEN = ("seen_record", "seen_run")

TABLES = (
    *BUCKETED, "aggregate", "blocking_item", "bucket", "computation", "dead_letter", "ended_sender",
    "fold", "generation", "incarnation",
    "inbox", "key_interval", "leader", "log", "peer_secret", "pipeline", "placement_event",
    "query", "request", "sent_id", "sent_record",
    "spark_query", "spark_start", "state", "stream", "taken_record", "timer", "worker",
    "worker_end",
)  # fmt: skip
"""Names of the tables: the import of `millwheel.store.postgres.schema` would take 0.13 s. A test
compares both."""

VIEWS = ("state_changes",)
"""Views that the statements of workers read."""

FENCE = "fence_and_record"
PARAMETER = re.compile(r"%\((\w+)\)s")

Part = tuple[str, tuple[tuple[str, str], ...]]
"""Name, and tables that fill further placeholders."""


READ_COMMITTED = {"default_transaction_isolation": "read committed"}
"""A session that has waited for a lock must see the result, whatever the database's default
isolation is."""

KEPT = 500
"""Composed statements in the cache; tables of buckets come and go."""


@cache
def _texts() -> dict[str, str]:
    """All files in the folders of ``sql/``, by name, without their comments: psycopg caches its
    analysis of a statement only up to 4,096 characters. Names of ``sql/views`` keep their folder.

    All are read at once: a worker can commit when it has no file descriptor left, and runs no
    statement of newer code when its package was upgraded in place.
    """
    texts = {}
    for folder in (resources.files("millwheel.store") / "sql").iterdir():
        prefix = "views/" if folder.name == "views" else ""
        for file in folder.iterdir():
            lines = file.read_text("utf-8").splitlines()
            texts[prefix + file.name.removesuffix(".sql")] = "\n".join(
                line for line in lines if not line.lstrip().startswith("--")
            )
    return texts


def text_of(name: str) -> str:
    return _texts()[name]


def composed(name: str, **parts: sql.Composable) -> str:
    """`parts` fill all placeholders of ``<name>.sql``."""
    return sql.SQL(text_of(name)).format(**parts).as_string(None)


@cache
def _text_in(package: str, name: str) -> str:
    return (resources.files(package) / "sql" / f"{name}.sql").read_text("utf-8")


def filled(package: str, name: str, schema: str, **parts: sql.Composable) -> sql.Composed:
    """The statement in ``sql/<name>.sql`` of another package: `parts` fill its placeholders, and
    relations of a schema the others."""
    text = _text_in(package, name)
    names = {part for _, part, _, _ in Formatter().parse(text) if part} - parts.keys()
    return sql.SQL(text).format(**{part: sql.Identifier(schema, part) for part in names}, **parts)


class Statements:
    def __init__(self, schema: str) -> None:
        _texts()
        self.schema = schema
        self._names: dict[str, sql.Composable] = {
            name: self.table(name) for name in (*TABLES, *VIEWS)
        }
        self._names["schema"] = sql.Identifier(schema)
        self._names["recovered_at"] = sql.SQL(text_of("recovered_at"))
        self._names["this_incarnation"] = sql.SQL(composed("this_incarnation", **self._names))
        for part in ("matching_letters", "letters_of_owners"):
            self._names[part] = sql.SQL(composed(part, **self._names))
        self._composed = lru_cache(maxsize=KEPT)(self._compose)
        self._joined = lru_cache(maxsize=KEPT)(self._join)

    def table(self, name: str) -> sql.Identifier:
        """Quoted."""
        return sql.Identifier(self.schema, name)

    def get(self, name: str, **tables: str) -> str:
        """`tables` fill placeholders that no table of the schema has."""
        return self._composed((name, tuple(sorted(tables.items()))))

    def union(self, name: str, tables: Sequence[str]) -> str:
        """A SELECT repeated for several tables, which fill its placeholder ``table``, with all
        rows."""
        return "\nUNION ALL\n".join(self.get(name, table=table) for table in tables)

    def together(self, parts: tuple[Part, ...]) -> str:
        """Several statements as one, which is a transaction of its own.

        A parameter ``rows`` of the first statement becomes ``rows_0``, of the second ``rows_1``,
        and so on. Statements that fence run before the others.
        """
        return self._joined(parts)

    def _compose(self, part: Part) -> str:
        name, tables = part
        further = {placeholder: self.table(table) for placeholder, table in tables}
        return composed(name, **{**self._names, **further})

    def _join(self, parts: tuple[Part, ...]) -> str:
        names = [sql.SQL(f"part_{place}") for place in range(len(parts))]
        named = [
            sql.SQL("{} AS (\n{})").format(name, sql.SQL(_numbered(self._composed(part), place)))
            for place, (name, part) in enumerate(zip(names, parts, strict=True))
        ]
        fences = [
            sql.SQL("({})").format(sql.SQL(composed("count_part", part=name)))
            for name, (statement, _) in zip(names, parts, strict=True)
            if statement == FENCE
        ]
        return composed(
            "together", parts=sql.SQL(",\n").join(named), fences=sql.SQL(" + ").join(fences)
        )


def _numbered(text: str, place: int) -> str:
    return PARAMETER.sub(rf"%(\1_{place})s", text)
