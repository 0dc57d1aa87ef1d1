"""Fingerprints of key extractors: what changes them, and what does not."""

from __future__ import annotations

import functools
import linecache
import operator
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from millwheel.core.extractors import comparable, fingerprint

files = iter(range(1_000_000))


def module_of(source: str, *, keep: bool = True) -> ModuleType:
    """A module made of a text; `keep`: its source can be read."""
    name = f"<made for a test {next(files)}>"
    if keep:
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    made = ModuleType("made")
    exec(compile(source, name, "exec"), made.__dict__)
    return made


def extractor(source: str, *, keep: bool = True) -> Callable[[Any], Any]:
    """`key` of such a module."""
    return module_of(source, keep=keep).key  # type: ignore[no-any-return]


SAME = [
    ("key = lambda r: r.key", "key = lambda   r : ( r.key )  # said otherwise"),
    ("key = lambda r: r.key", "\n\nkey = (\n    lambda record:\n        record.key\n)"),
    ("def key(r): return r.key", 'def key(r: int) -> str:\n    """Its key."""\n    return r.key'),
    ("def key(r):\n  k = r.key\n  return k", "def key(row):\n  name = row.key\n  return name"),
    ("P = 'a'\nkey = lambda r: P + r", "P = 'a'\nQ = 'b'\nkey = lambda r: P + r"),
    ("P = frozenset('ab')\nkey = lambda r: r in P", "P = frozenset('ba')\nkey = lambda r: r in P"),
    ("P = {}\nkey = lambda r: P.get(r)", "P = {'filled': 'by now'}\nkey = lambda r: P.get(r)"),
    ("key = lambda r: f'{r.a}/{r.b:>3}'", 'key = lambda r: f"{r.a}/{r.b:>3}"'),
    ("key = lambda r: 'a' if r else 'b'", "x, key = lambda r: 1, lambda r: 'a' if r else 'b'"),
]

CALLED = """
class K:
  def __init__(self, n): self.n = n
  def __call__(self, r): return r[self.n]
"""

OTHER = [
    ("key = lambda r: r.key", "key = lambda r: r.key.upper()"),
    ("key = lambda r: r.key", "key = lambda r: r.name"),
    ("key = lambda r: (r.a, r.b)", "key = lambda r: (r.b, r.a)"),
    ("key = lambda r: r.n % 10", "key = lambda r: r.n % 100"),
    ("key = lambda r: r.n + 1", "key = lambda r: r.n - 1"),
    ("key = lambda r: 1", "key = lambda r: True"),
    ("key = lambda a, b=1: a", "key = lambda a, b=2: a"),
    ("P = 'a'\nkey = lambda r: P + r", "P = 'b'\nkey = lambda r: P + r"),
    ("P = ('a', 1)\nkey = lambda r: P[0] + r", "P = ('b', 1)\nkey = lambda r: P[0] + r"),
    ("P = frozenset('ab')\nkey = lambda r: r in P", "P = frozenset('ac')\nkey = lambda r: r in P"),
    ("import re\nP = re.compile('a+')\nkey = lambda r: P.match(r)[0]",
     "import re\nP = re.compile('a*')\nkey = lambda r: P.match(r)[0]"),
    ("def f(r): return r.a\nkey = lambda r: f(r)", "def f(r): return r.b\nkey = lambda r: f(r)"),
    ("def by(n): return lambda r: r[n]\nkey = by(1)",
     "def by(n): return lambda r: r[n]\nkey = by(2)"),
    ("key, other = lambda r: r.a, lambda r: r.b", "other, key = lambda r: r.a, lambda r: r.b"),
    ("import operator\nkey = operator.attrgetter('a')",
     "import operator\nkey = operator.attrgetter('b')"),
    ("import functools\ndef f(n, r): return r[n]\nkey = functools.partial(f, 1)",
     "import functools\ndef f(n, r): return r[n]\nkey = functools.partial(f, 2)"),
    (f"{CALLED}key = K(1)", f"{CALLED}key = K(2)"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), SAME)
def test_what_gives_the_same_keys_by_its_syntax_has_the_same_fingerprint(
    one: str, other: str
) -> None:
    assert fingerprint(extractor(one)) == fingerprint(extractor(other)) != None  # noqa: E711


@pytest.mark.parametrize(("one", "other"), OTHER)
def test_other_code_has_another_fingerprint(one: str, other: str) -> None:
    assert fingerprint(extractor(one)) == fingerprint(extractor(one))
    assert comparable(fingerprint(extractor(one)), fingerprint(extractor(other)))
    assert fingerprint(extractor(one)) != fingerprint(extractor(other))


def test_without_the_source_names_and_constants_tell() -> None:
    def compiled(source: str) -> str | None:
        return fingerprint(extractor(source, keep=False))

    assert compiled("key = lambda r: r.key") == compiled("key = lambda x: (x.key)")
    assert compiled("key = lambda r: r.key") != compiled("key = lambda r: r.key.upper()")
    assert compiled("key = lambda r: r.n % 10") != compiled("key = lambda r: r.n % 100")
    assert not comparable(compiled("key = str"[:0] + "key = lambda r: r.key"),
                          fingerprint(extractor("key = lambda r: r.key")))  # fmt: skip


def test_a_function_without_a_module_has_a_fingerprint() -> None:
    namespace: dict[str, Any] = {"__name__": None}
    exec("def key(row): return row.word", namespace)
    assert namespace["key"].__module__ is None
    assert fingerprint(namespace["key"]) is not None


def test_what_is_built_in_is_known_by_its_name() -> None:
    assert fingerprint(str) == fingerprint(str) != fingerprint(int)
    assert fingerprint(operator.itemgetter(1)) == fingerprint(operator.itemgetter(1))
    assert fingerprint(functools.partial(int, base=10)) != fingerprint(
        functools.partial(int, base=8)
    )


def test_functions_that_call_each_other_are_described_once() -> None:
    source = "def key(r): return f(r) if r else 0\ndef f(r): return key(r - 1)"
    assert fingerprint(extractor(source)) is not None


def test_what_nobody_can_read_is_unknown() -> None:
    class Odd:
        __call__ = staticmethod(str)

    assert fingerprint(Odd()) is None
    assert not comparable(None, None)


@pytest.mark.process
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
def test_every_version_of_python_says_the_same(python: str, tmp_path: Path) -> None:
    """As far as they are installed here; those of this one are pinned below."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    is_this = python == f"{sys.version_info[0]}.{sys.version_info[1]}"
    command = sys.executable if is_this else f"python{python}"

    def run(text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [command, "-c", text],
            capture_output=True, text=True, timeout=60, check=True,
            env={**os.environ, "PYENV_VERSION": python},
        )  # fmt: skip

    try:
        run("pass")
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip(f"there is no Python {python}")
    source = Path(__file__).resolve().parents[2]
    result = run(RUNNER.format(root=str(source), file=str(program)))
    assert result.stdout.split() == PINNED


PROGRAM = """
import functools, operator
PREFIX = "p"
def helper(r):
    return f"{PREFIX}{r.key!r:>{10}}"
def named(record):
    '''A key.'''
    match record:
        case {"a": x}:
            return x
    try:
        return [y for y in record if y][0]
    except IndexError as error:
        return helper(record)
def closing(n, m=(1, "a")):
    return lambda r: (r[n], n, m)
lambdas = [lambda r: r.key, lambda r: r.key.upper(), lambda r, *a, k=5, **b: (r, (z := k))]
keys = [named, closing(3), *lambdas, operator.attrgetter("a.b"), functools.partial(helper, 1), str]
"""

RUNNER = """
import importlib.util, sys
sys.dont_write_bytecode = True
try:
    import msgspec
except ImportError:
    import json, types
    msgspec = types.ModuleType("msgspec")
    class Struct:
        def __init_subclass__(cls, **options):
            pass
    msgspec.Struct = Struct
    msgspec.json = types.SimpleNamespace(
        encode=lambda v: json.dumps(v, separators=(",", ":")).encode()
    )
    sys.modules["msgspec"] = msgspec
def load(name, file):
    spec = importlib.util.spec_from_file_location(name, file)
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    spec.loader.exec_module(made)
    return made
extractors = load("extractors", {root!r} + "/millwheel/core/extractors.py")
print(*map(extractors.fingerprint, load("program", {file!r}).keys))
"""

PINNED = [
    "source:8842d533f37f49003d5e8347",
    "source:876efe2d2d0b9c298cf0789f",
    "source:21da5f8112105c5957e80753",
    "source:a26b4d86a4b1375c0bde02fe",
    "source:98772a534cae58d4b8faaf83",
    "source:1b47ccb33d57085ff5719b4d",
    "source:05a8105f64fb761db247ff38",
    "source:a88f8f34c6f81aa501322bec",
]
"""Of each of the program's keys: another one would refuse deploys that change nothing."""


def number(value: Any) -> int:
    """A global function with the name of an attribute."""
    return 1


def test_a_global_with_the_name_of_an_attribute_is_not_used() -> None:
    def by_number(item: Any) -> Any:
        return item.number

    before = fingerprint(by_number)
    globals()["number"], kept = lambda value: 2, number
    try:
        assert fingerprint(by_number) == before
    finally:
        globals()["number"] = kept
