"""Functions of the user in expressions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import NoneType
from typing import Any, TypeVar, get_type_hints

from millwheel.core.extractors import fingerprint
from millwheel.errors import GraphError
from millwheel.sql.catalog import Signature, postgres
from millwheel.sql.functions.registry import FUNCTIONS, Implementation
from millwheel.sql.schemas import sql_type_of

F = TypeVar("F", bound=Callable[..., Any])

_KNOWN: dict[str, Callable[..., Any]] = {}


def function(given: F) -> F:
    """Make a function available in queries, under its name.

    ```python
    from millwheel import sql

    @sql.function
    def letters(text: str, letter: str) -> int:
        return text.count(letter)

    counted = pipeline.sql("INSERT INTO counted SELECT letters(item, 'e') AS e FROM orders")
    async with Harness(pipeline) as harness:
        await harness.inject(ORDERS, TEA)
        assert [row.e for row in harness.produced(counted)] == [1]
    ```

    The annotations say the types: ``int`` is bigint, ``str`` text, and so on
    (``docs/reference/query-language.md``). If a parameter may be None, the function is called with
    NULL; if none may, NULL in an argument makes NULL without a call. The result may be None if the
    annotation says so. The same values must give the same result, since a record may be processed
    again. An exception fails the record.

    The function is known in the process that has imported its module, so it belongs into the module
    of the pipeline. A deploy compares its code as part of the query.

    Raises:
        GraphError: Postgres has a function of the name, an annotation is missing or no type of SQL,
            or only some of the parameters may be None.
    """
    name = given.__name__.lower()
    where = f"{given.__module__}.{given.__qualname__}"
    if inspect.iscoroutinefunction(given):
        raise GraphError(f"{where} is a coroutine function; queries call functions without await")
    known = _KNOWN.get(name)
    is_same = known is not None and (known.__module__, known.__qualname__) == (
        given.__module__,
        given.__qualname__,
    )
    if not is_same and (known is not None or postgres().has_function(name)):
        other = "Postgres" if known is None else f"the module {known.__module__}"
        raise GraphError(f"{where}: {other} has a function {name}; choose another name")
    signature, may_be_null = _signature(given, name, where)
    _KNOWN[name] = given
    postgres().add(signature)
    FUNCTIONS[signature.key] = Implementation(given, "", may_be_null)
    return given


def _signature(given: Callable[..., Any], name: str, where: str) -> tuple[Signature, bool]:
    hints = get_type_hints(given, include_extras=True)
    kinds, nullable = [], []
    for parameter in inspect.signature(given).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            raise GraphError(f"{where}: {parameter} has no place; queries give values by place")
        kind, may_be_null = _kind(hints.get(parameter.name), f"{where}: {parameter.name}")
        kinds.append(kind)
        nullable.append(may_be_null)
    if any(nullable) and not all(nullable):
        raise GraphError(
            f"{where}: some parameters may be None and others not; let all of them, or none"
        )
    result, may_be_null = _kind(hints.get("return"), f"{where}: the result")
    signature = Signature(
        name, tuple(kinds), result, is_strict=not any(nullable), code=fingerprint(given) or ""
    )
    return signature, may_be_null


def _kind(hint: Any, what: str) -> tuple[str, bool]:
    if hint is None or hint is NoneType:
        raise GraphError(f"{what} has no annotation; it says the type, as in (text: str) -> int")
    kind, nullable = sql_type_of(hint)
    if kind is None:
        raise GraphError(f"{what} is {hint!r}, which is no type of SQL")
    return kind.name, nullable
