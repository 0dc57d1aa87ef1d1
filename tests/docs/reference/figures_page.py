"""docs/reference/page-figures.md, from the structs that the pages of `millwheel ui` show."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any, Literal, TypeGuard, Union, get_args, get_origin, get_type_hints

import msgspec

from millwheel.ui.page import Page
from millwheel.ui.pages import OVERVIEW, PAGES
from tests.docs.reference.markdown import code, page, prose, table

HEAD = """
`millwheel ui` and `millwheel.ui.app` serve the figures of each page as JSON, below `/api/`, to
those who may look at the page. The query has the page's filters; unknown ones are refused. Times
are ISO 8601 in UTC, or `infinity` and `-infinity`, the ends of event time. An error has one field,
`error`, and the status of the page: 400 for a wrong filter, 401, 403, 404, or 503 while the store
is away. An answer has an `ETag`; `If-None-Match` makes an unchanged one a 304.
"""


def figures_page() -> str:
    parts = [prose(HEAD)]
    shown: dict[str, type[Any]] = {}
    for each in (OVERVIEW, *PAGES.values()):
        parts += _page(each, is_overview=each is OVERVIEW)
        shown |= {found.__name__: found for found in _structs(_figures(each))}
    parts.append("## Parts of figures")
    for name in sorted(shown):
        parts += [f"### {name}", prose(_text(shown[name])), _fields(shown[name])]
    return page("Figures of pages", *parts)


def _page(shown: Page[Any], *, is_overview: bool) -> Iterator[str]:
    path = "/api/" if is_overview else f"/api/pipelines/NAME/{shown.name}".rstrip("/")
    yield f"## {shown.title}"
    yield f"`GET {path}`: {shown.question}" + (
        f" As a file: the page's address with `.{shown.download.suffix}`." if shown.download else ""
    )
    yield _fields(shown.filters, "filter")
    found = _figures(shown)
    if shown.ask is not None:
        yield "It has also `answer`, for the statement in the filters."
    yield _fields(found)


def _figures(shown: Page[Any]) -> type[Any]:
    found: type[Any] = get_type_hints(shown.look)["return"]
    return found


def _structs(found: object) -> Iterator[type[Any]]:
    """Structs among the types of a struct's fields, and of theirs."""
    seen: set[type[Any]] = set()
    left: list[Any] = [found]
    while left:
        one = left.pop()
        left += get_args(one)
        if _is_struct(one) and one not in seen:
            seen.add(one)
            left += _hints(one).values()
            if one is not found:
                yield one


def _is_struct(kind: Any) -> TypeGuard[type[Any]]:
    return isinstance(kind, type) and (issubclass(kind, msgspec.Struct) or hasattr(kind, "_fields"))


def _fields(of: type[Any], head: str = "field") -> str:
    texts = _texts_of_fields(of)
    rows = [
        (code(name), _type(kind), _plain(texts.get(name, ""))) for name, kind in _hints(of).items()
    ]
    return table([head, "type", "meaning"], rows)


def _hints(of: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(of)
    names: Any = getattr(of, "__struct_fields__", None) or getattr(of, "_fields", ())
    return {name: hints[name] for name in names}


def _texts_of_fields(of: type[Any]) -> dict[str, str]:
    """The strings below the fields, those of base classes too."""
    found: dict[str, str] = {}
    for base in reversed(of.__mro__):
        if base.__module__.startswith("millwheel"):
            found |= _texts_in(textwrap.dedent(inspect.getsource(base)))
    return found


def _texts_in(source: str) -> dict[str, str]:
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    found, name = {}, ""
    for node in definition.body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=given)):
                name = given
            case ast.Expr(value=ast.Constant(value=str(text))) if name:
                found[name], name = text, ""
            case _:
                name = ""
    return found


def _text(of: type[Any]) -> str:
    found = vars(of).get("__doc__") or ""
    return "" if found.startswith(f"{of.__name__}(") else _plain(found)


def _plain(text: str) -> str:
    return re.sub(r"``(.+?)``", r"`\1`", text)


NAMES = {int: "integer", float: "number", str: "text", bool: "true or false", type(None): "null"}


def _type(kind: Any) -> str:
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return ", ".join(code(part) for part in parts)
    if origin in (list, tuple):
        return f"list of {_type(parts[0])}"
    if origin is dict:
        return f"object of {_type(parts[1])}"
    if origin is Union or type(kind).__name__ == "UnionType":
        return " or ".join(_type(part) for part in parts)
    if kind in NAMES:
        return NAMES[kind]
    if _is_struct(kind):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    return "time" if getattr(kind, "__name__", "") == "datetime" else "JSON"
