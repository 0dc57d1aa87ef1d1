"""docs/reference/views.md, from the comments of a pipeline's schema."""

from __future__ import annotations

from typing import Any

import psycopg

from tests.docs.reference.markdown import code, page, prose, table

HEAD = """
A pipeline is a schema of the database, with the pipeline's name. Its views show committed data, of
one moment with your own tables. How to read them is in
[Look inside with SQL](../howto/connect/sql-inside.md). A key is JSON: the text key *cat* is
compared as `key = '"cat"'`.
"""

STATES = """
Each computation with state has views of its own, with a typed column for each field:
`state_of_<computation>`; `state_of_<computation>_<field>` for each `MapState` and `ListState`, with
`key`, `entry` and `value`; and `state_of_<computation>_shared` for `ctx.shared`, with its cell.
"""

VIEWS = """
SELECT relation.relname, obj_description(relation.oid, 'pg_class'),
    attribute.attname, format_type(attribute.atttypid, attribute.atttypmod),
    col_description(relation.oid, attribute.attnum)
FROM pg_class AS relation
JOIN pg_attribute AS attribute ON attribute.attrelid = relation.oid AND attribute.attnum > 0
WHERE relation.relnamespace = %s::regnamespace AND relation.relkind = 'v'
ORDER BY relation.relname, attribute.attnum
"""

FUNCTIONS = """
SELECT routine.proname || '(' || pg_get_function_arguments(routine.oid) || ')',
    pg_get_function_result(routine.oid), obj_description(routine.oid, 'pg_proc')
FROM pg_proc AS routine
WHERE routine.pronamespace = %s::regnamespace
    AND obj_description(routine.oid, 'pg_proc') IS NOT NULL
ORDER BY routine.proname
"""


def views_page(connection: psycopg.Connection[Any], schema: str) -> str:
    """The page for a schema that was migrated."""
    views: dict[tuple[str, str], list[tuple[str, str, str]]] = {}
    for view, text, column, kind, meaning in connection.execute(VIEWS, (schema,)):
        views.setdefault((view, text or ""), []).append((code(column), kind, meaning or ""))
    sections = [
        "\n\n".join(
            part
            for part in (f"### {view}", prose(text), table(["column", "type", "meaning"], columns))
            if part
        )
        for (view, text), columns in views.items()
    ]
    functions = [
        (code(signature), code(result.replace(f"{schema}.", "")), meaning)
        for signature, result, meaning in connection.execute(FUNCTIONS, (schema,))
    ]
    return page(
        "Views and functions",
        prose(HEAD),
        prose(STATES),
        "## Views",
        *sections,
        "## Functions",
        table(["function", "gives", "meaning"], functions),
    )
