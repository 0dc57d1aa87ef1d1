"""Postgres' operators, functions, aggregates and casts that Spark has with the same meaning.

Each template gives, in ANSI mode, the value of the Postgres signature for all values of its types,
NULL included, and fails where Postgres does. A signature that is missing here makes its step run
as a class, so an entry needs a proof, and `tests/spark/test_query_expressions.py` draws values for
each of them. What is left out on purpose:

* arithmetic of floats: Postgres refuses infinities, which Spark gives; sums depend on the order
* ``numeric`` with places after the point: Spark has at most 38 digits, Postgres any number of them
* ``avg``: the number of its digits follows Postgres' own rules
* ``upper``, ``lower``, patterns: other tables of characters
* texts as numbers and times: other forms are read
"""

from __future__ import annotations

from typing import NamedTuple

TYPES = {
    "bool": "BOOLEAN", "int2": "SMALLINT", "int4": "INT", "int8": "BIGINT", "float8": "DOUBLE",
    "text": "STRING", "varchar": "STRING", "date": "DATE", "timestamptz": "TIMESTAMP",
    "numeric": "DECIMAL(38,0)",
}  # fmt: skip
"""Spark's type for values of each type; numbers of type ``numeric`` are whole."""

COLUMNS = frozenset(TYPES) - {"numeric"}
"""Types that a column of a source may have: not ``numeric``, whose values need not be whole."""


class Equivalent(NamedTuple):
    template: str
    """Spark's SQL, with ``{0}``, ``{1}`` … for the arguments."""
    may_fail: bool = False
    """Whether some values raise an error."""
    divides: bool = False
    """Whether only the divisors 0 and -1 do."""


SIGNATURES: dict[str, Equivalent] = {}
"""By `millwheel.sql.catalog.Signature.key`."""

AGGREGATES: dict[str, Equivalent] = {}
"""The same for aggregates; ``{filter}`` stands for the FILTER clause."""

CASTS: dict[tuple[str, str], Equivalent] = {}
"""By the names of the two types."""

ORDERED = frozenset(["int2", "int4", "int8", "text", "date", "timestamptz"])
"""Types of which equal values are the same value: 0.0 and -0.0 are not."""

_SYMBOLS = {"eq": "=", "ne": "<>", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_INTEGERS = {
    "int2": ("int2", "int2", "int2"), "int4": ("int4", "int4", "int4"),
    "int8": ("int8", "int8", "int8"), "int24": ("int2", "int4", "int4"),
    "int42": ("int4", "int2", "int4"), "int28": ("int2", "int8", "int8"),
    "int82": ("int8", "int2", "int8"), "int48": ("int4", "int8", "int8"),
    "int84": ("int8", "int4", "int8"),
}  # fmt: skip
_WHOLE = ("int2", "int4", "int8")


def _cast(value: str, kind: str) -> str:
    return f"CAST({value} AS {TYPES[kind]})"


def _register_integers(name: str, left: str, right: str, result: str) -> None:
    pair = f"({left},{right})"
    one = "{0}" if left == result else _cast("{0}", result)
    other = "{1}" if right == result else _cast("{1}", result)
    for end, symbol in {"pl": "+", "mi": "-", "mul": "*"}.items():
        SIGNATURES[f"{name}{end}{pair}"] = Equivalent(f"({one} {symbol} {other})", may_fail=True)
    # DIV is of bigint whatever its operands are; the least number by -1 is out of range.
    quotient = f"({_cast('{0}', 'int8')} DIV {_cast('{1}', 'int8')})"
    SIGNATURES[f"{name}div{pair}"] = Equivalent(_cast(quotient, result), True, True)
    for end, symbol in _SYMBOLS.items():
        SIGNATURES[f"{name}{end}{pair}"] = Equivalent(f"({one} {symbol} {other})")
    if left == right:
        remainder = Equivalent("({0} % {1})", True, True)
        SIGNATURES[f"{name}mod{pair}"] = SIGNATURES[f"mod{pair}"] = remainder
        SIGNATURES[f"{name}um({left})"] = Equivalent(_cast("(- {0})", result), may_fail=True)
        size = Equivalent(_cast("abs({0})", result), may_fail=True)
        SIGNATURES[f"{name}abs({left})"] = SIGNATURES[f"abs({left})"] = size
        SIGNATURES[f"{name}up({left})"] = Equivalent("{0}")


def _register_comparisons() -> None:
    for end, symbol in _SYMBOLS.items():
        compared = Equivalent(f"({{0}} {symbol} {{1}})")
        text = f"text_{end}" if end in ("lt", "le", "gt", "ge") else f"text{end}"
        SIGNATURES[f"{text}(text,text)"] = compared
        SIGNATURES[f"float8{end}(float8,float8)"] = compared
        SIGNATURES[f"bool{end}(bool,bool)"] = compared
        for kind in ("numeric", "date", "timestamptz"):
            SIGNATURES[f"{kind}_{end}({kind},{kind})"] = compared


def _register_texts() -> None:
    SIGNATURES["textcat(text,text)"] = Equivalent("concat({0}, {1})")
    for name in ("length", "char_length", "character_length", "textlen"):
        SIGNATURES[f"{name}(text)"] = Equivalent("char_length({0})")
    SIGNATURES["octet_length(text)"] = Equivalent("octet_length({0})")
    SIGNATURES["starts_with(text,text)"] = Equivalent("startswith({0}, {1})")


def _register_aggregates() -> None:
    AGGREGATES["count()"] = Equivalent("count(1){filter}")
    AGGREGATES["count(any)"] = Equivalent("count({0}){filter}")
    for kind in ("int2", "int4"):  # four billion records, before a sum is out of range too early
        AGGREGATES[f"sum({kind})"] = Equivalent(f"sum({_cast('{0}', 'int8')}){{filter}}", True)
    total = "sum(CAST({0} AS DECIMAL(28,0))){filter}"  # Spark adds ten digits to the 28
    AGGREGATES["sum(int8)"] = Equivalent(_cast(total, "numeric"))
    for name in ("min", "max"):
        for kind in ORDERED:
            AGGREGATES[f"{name}({kind})"] = Equivalent(f"{name}({{0}}){{filter}}")
    for name, own in {"bool_and": "bool_and", "every": "bool_and", "bool_or": "bool_or"}.items():
        AGGREGATES[f"{name}(bool)"] = Equivalent(f"{own}({{0}}){{filter}}")


def _register_casts() -> None:
    for source in _WHOLE:
        for target in _WHOLE:
            if source != target:
                is_narrow = _WHOLE.index(target) < _WHOLE.index(source)
                CASTS[source, target] = Equivalent(_cast("{0}", target), is_narrow)
        CASTS[source, "text"] = Equivalent(_cast("{0}", "text"))
        CASTS[source, "numeric"] = Equivalent(_cast("{0}", "numeric"))
        CASTS["numeric", source] = Equivalent(_cast("{0}", source), may_fail=True)
    CASTS["bool", "text"] = Equivalent(_cast("{0}", "text"))
    CASTS["bool", "int4"] = Equivalent(_cast("{0}", "int4"))
    CASTS["int4", "bool"] = Equivalent(_cast("{0}", "bool"))


for _name, _types in _INTEGERS.items():
    _register_integers(_name, *_types)
_register_comparisons()
_register_texts()
_register_aggregates()
_register_casts()
