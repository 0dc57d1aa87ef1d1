"""Exports what `millwheel.sql.catalog` needs of a Postgres: types, operators, functions, casts.

``python -m tests.sql.export_catalog`` writes `catalog.json` anew, from a server of its own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg

from millwheel.sql import catalog

TYPES = """
bool int2 int4 int8 numeric float4 float8 text varchar bpchar date time timestamp
timestamptz interval uuid bytea json jsonb unknown any anyelement anyarray anynonarray
anycompatible anycompatiblearray anycompatiblenonarray
""".split()  # noqa: SIM905

INTERNAL = (
    "binary_upgrade", "brin", "btree", "current_", "enum_", "gin_", "gist", "gtsvector", "hash",
    "has_", "in_range", "inet_", "lo_", "lowrite", "loread", "pg_", "range_", "record_",
    "row_security", "spg_", "ts_", "tsm_", "tsquery", "tsvector", "txid_", "xml",
)  # fmt: skip
"""Beginnings of the names of functions that no query calls."""

WITHIN = """
CREATE TEMP VIEW known_type AS
SELECT t.oid, t.typname, t.typcategory, t.typispreferred, format_type(t.oid, NULL) AS shown
FROM pg_type AS t
LEFT JOIN pg_type AS e ON e.oid = t.typelem AND t.typcategory = 'A'
WHERE t.typnamespace = 'pg_catalog'::regnamespace
    AND coalesce(e.typname, t.typname) = ANY (string_to_array('{}', ' '))
    AND coalesce(e.typtype, 'b') = 'b'
"""
QUERIES = {
    "types": """
SELECT typname, typcategory::text, typispreferred, shown FROM known_type ORDER BY 1
""",
    "operators": """
SELECT o.oprname, l.typname, r.typname, t.typname, p.proname, p.proisstrict, p.provolatile::text
FROM pg_operator AS o
LEFT JOIN known_type AS l ON l.oid = o.oprleft
JOIN known_type AS r ON r.oid = o.oprright
JOIN known_type AS t ON t.oid = o.oprresult
JOIN pg_proc AS p ON p.oid = o.oprcode
WHERE (o.oprleft = 0) = (l.oid IS NULL)
ORDER BY 1, 2 NULLS FIRST, 3
""",
    "functions": """
SELECT
    p.proname, argument.types, t.typname, p.prokind::text, p.proisstrict, p.provolatile::text,
    p.provariadic <> 0, p.pronargdefaults, p.proretset
FROM pg_proc AS p
JOIN known_type AS t ON t.oid = p.prorettype
CROSS JOIN LATERAL (
    SELECT array_agg(k.typname ORDER BY a.place) AS types, count(*) AS count
    FROM unnest(p.proargtypes) WITH ORDINALITY AS a (oid, place)
    JOIN known_type AS k ON k.oid = a.oid
) AS argument
WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind IN ('f', 'a')
    AND argument.count = p.pronargs
    AND NOT EXISTS (
        SELECT FROM unnest(string_to_array('{}', ' ')) AS head WHERE starts_with(p.proname, head)
    )
ORDER BY 1, 2
""",
    "casts": """
SELECT s.typname, t.typname, c.castcontext::text, c.castmethod::text, p.proname
FROM pg_cast AS c
JOIN known_type AS s ON s.oid = c.castsource
JOIN known_type AS t ON t.oid = c.casttarget
LEFT JOIN pg_proc AS p ON p.oid = c.castfunc
ORDER BY 1, 2
""",
}


def export(url: str) -> dict[str, list[Any]]:
    """Read a server's catalog."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(WITHIN.format(" ".join(TYPES)).encode())
        return {
            name: [list(row) for row in connection.execute(_filled(query)).fetchall()]
            for name, query in QUERIES.items()
        }


def _filled(query: str) -> bytes:
    return query.replace("{}", " ".join(INTERNAL)).encode()


def written(found: dict[str, list[Any]]) -> str:
    """One row a line, so that a change of version can be read."""
    parts = []
    for name, rows in found.items():
        lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
        parts.append(f'"{name}": [\n{lines}\n]')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    """Write the file anew."""
    from bench.server import server

    with server() as (url, _):
        Path(catalog.FILE).write_text(written(export(url)))


if __name__ == "__main__":
    main()
