"""Operators of three-valued logic and choices mean what they mean in Postgres."""

from __future__ import annotations

import pytest

from tests.sql.oracle import Oracle, differences

ROWS = [
    {"a": ("int8", "7"), "b": ("int4", "-3"), "s": ("text", "hello"), "p": ("bool", "true"),
     "q": ("bool", None), "n": ("int8", None)},
    {"a": ("int8", "0"), "b": ("int4", "0"), "s": ("text", ""), "p": ("bool", "false"),
     "q": ("bool", "true"), "n": ("int8", "7")},
]  # fmt: skip

EXPRESSIONS = """
p and q|p or q|not q|not p and q|p is null|q is unknown|q is not true|q is not false
p is not unknown|a > 1 and q or p|p and (q or a = 7)|q or q|null or p|null and p|not null|p = q
p <> q|p < q|case when a > 5 then 'x' when q then 'y' end|case when q then 1 else b end
case b when -3 then a else 2 end|case when null then 1 else 2 end|case a when 7 then 'x' end
case when p then 1 when q then 2147483648 end|coalesce(null, a, 1)|coalesce(n, b)
coalesce(q, p)|coalesce(null, null)|coalesce(s, 'x')|coalesce(n, null)|nullif(a, 7)
nullif(b, 7)|nullif(n, a)|nullif(s, '')|nullif('a', 'a')|nullif(a, b)|greatest(a, b, 10)
least(a, null, b)|greatest(n, null)|least(n, a)|greatest(s, 'm')|least('a', 'b')|a in (1, 2, 7)
a not in (1, null)|a in (null)|n in (7, b)|s in ('hello', 'x')|b not in (a, -3)|a in (b)
a = any(array[1, 7])|b <> all(array[1, null])|a > all(array[1, 2])|n = any(array[7, null])
a between 1 and 10|a not between b and 3|n between null and 10|a between symmetric 10 and 1
a is distinct from n|a is not distinct from 7|n is distinct from null
s is not distinct from 'hello'|(array[1, 2, 3])[b + 5]|(array[a, n])[2]
array[1, 2] = array[1, 2]|a = b is null|not a = b|p is true = q|a > b = p|a + b > 3 or p|a|s|q
null|'x'|a = 'x'|a and p|not a|case when a then 1 end|case when p then 1 else 'x' end
a in ('1', '7')|coalesce(a, s)|greatest(a, s)|nullif(a, s)|a in (s)|p > a|1 = 1|1 <> 2|2 < 1
a::int4 = b|a = b::int8
"""


@pytest.mark.parametrize("row", ROWS, ids=["one", "other"])
def test_logic_is_that_of_postgres(oracle: Oracle, row: dict[str, tuple[str, str | None]]) -> None:
    assert not "\n".join(
        differences(oracle, EXPRESSIONS.strip().replace("\n", "|").split("|"), row)
    )
