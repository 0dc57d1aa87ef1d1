"""Each public class and function has an example in its docstring, and each example runs.

An example is a block that continues the program in the docstring of `millwheel`. It runs alone, in
an empty directory, with the names of that program and those of its own public module. Examples that
need a store run on the tests' Postgres. mypy checks all of them.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import psycopg
import pytest

import millwheel
from millwheel.store.port.deploy import StreamDeploy
from tests.support.code_blocks import Example, examples, python_blocks, run_block
from tests.support.product import ROOT, product_files
from tests.support.store_sites import Owner, PostgresSite, Schema, deploy
from tests.support.typed_programs import check_types

PLACES = ["millwheel", *(f"millwheel.{name}" for name in millwheel.PUBLIC_MODULES)]
PROGRAM = python_blocks(str(millwheel.__doc__))[0]
URL = "postgresql://app@db/shop"
"""The store's address in examples."""

WITHOUT_EXAMPLE = {
    "millwheel.errors": "a program catches all errors alike; the module has one example",
}
"""Public modules whose classes need no example of their own, with the reason."""

METHODS = {
    "Client": {"send", "send_all", "statement", "transaction"},
    "Computation": {"process_broadcast", "process_bundle", "process_timer"},
    "Context": {
        "cancel_timer", "count", "execute", "hold_watermark", "produce", "set_timer", "shared",
        "state",
    },
    "Harness": {"advance", "dead_letters", "inject", "produced", "rows", "sleep", "state"},
    "ListState": {"append", "pop_first"},
    "MapState": {"get", "put", "range"},
    "Pipeline": {"add", "inject", "sink", "spark"},
    "Stream": {"broadcast", "by", "spread"},
}  # fmt: skip
"""Methods that the documents would show with an example."""

ONLY_COMPILED = {
    "Job": "needs a Spark session",
    "register": "needs a Spark session",
    "run_job": "needs a Spark session",
    "snapshot": "needs a Spark session",
    "Snapshot": "needs a Spark session",
}
"""Examples that are compiled and type-checked, but not run."""

ON_A_STORE = {"Client", *(f"Client.{method}" for method in METHODS["Client"])}

MOST_LINES = 10
LONGER = {
    "BundleSink", "Discovery", "GrowingSource", "Partition", "Reader", "Source", "check_sink",
}  # fmt: skip
"""Protocols, whose examples implement all of their methods."""
MOST_LINES_OF_PROTOCOLS = 16

ALL = [
    example
    for path in product_files()
    if path != ROOT / "millwheel" / "__init__.py"
    for example in examples(path)
]


def public_module(path: Path) -> str:
    """The public module that a file belongs to; `millwheel` for files of internal packages."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    place = ".".join(("millwheel", *(part for part in parts if part != "millwheel"))[:2])
    return place if place in PLACES else "millwheel"


def public_objects() -> Iterator[tuple[str, Any]]:
    for place in PLACES:
        if place in WITHOUT_EXAMPLE:
            continue
        module = import_module(place)
        for name in module.__all__:
            found = getattr(module, name)
            if inspect.isclass(found) or inspect.isfunction(found):
                yield f"{place}.{name}", found


def has_example(found: Any) -> bool:
    return "```python\n" in (found.__doc__ or "")


def label(example: Example) -> str:
    return f"{example.path.relative_to(ROOT)}:{example.owner or 'module'}"


def test_each_public_class_and_function_has_an_example() -> None:
    objects = dict(public_objects())
    assert len(objects) > 100
    assert [name for name, found in objects.items() if not has_example(found)] == []
    assert all(has_example(import_module(place)) for place in WITHOUT_EXAMPLE)


def test_the_main_methods_have_examples() -> None:
    classes = {name.rpartition(".")[2]: found for name, found in public_objects()}
    missing = [
        f"{name}.{method}"
        for name, methods in METHODS.items()
        for method in sorted(methods)
        if not has_example(getattr(classes[name], method))
    ]
    assert missing == []


def test_examples_are_short() -> None:
    long = [
        f"{label(example)}: {example.size} lines"
        for example in ALL
        if example.size > (MOST_LINES_OF_PROTOCOLS if example.owner in LONGER else MOST_LINES)
    ]
    assert long == []


def test_exceptions_are_still_needed() -> None:
    owners = {example.owner for example in ALL}
    assert {*ONLY_COMPILED, *ON_A_STORE, *LONGER} - owners == set()


@pytest.fixture
async def shop(new_schema: Callable[[int], Schema]) -> AsyncIterator[Schema]:
    """A pipeline whose stream `orders` takes records, and a table of the user's."""
    schema = new_schema(18)
    with psycopg.connect(schema.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE public.bills (customer text)")
    site = await PostgresSite.open(schema)
    orders = StreamDeploy("orders", 1, {})
    owner = await Owner.take(site.store, await deploy(site.store, words=orders))
    await site.store.open_inbox(
        "orders", owner.injector.id, requires_id=False, remember=timedelta(days=1)
    )
    yield schema
    await site.aclose()


def on_store(code: str, schema: Schema) -> str:
    """The code of an example with the name and the address of a pipeline of the tests."""
    return code.replace(f'"shop", "{URL}"', f'"{schema.name}", "{schema.url}"')


async def run(example: Example, code: str) -> None:
    """Run the code of an example after the program, with the names of its module."""
    place = import_module(public_module(example.path))
    names: dict[str, Any] = {"__name__": "example"}
    await run_block(PROGRAM, names, Path(str(millwheel.__file__)))
    names |= {name: getattr(place, name) for name in place.__all__}
    await run_block(code, names, example.path, example.line)


@pytest.mark.parametrize("example", [e for e in ALL if e.owner not in ON_A_STORE], ids=label)
async def test_an_example_runs(
    example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if example.owner in ONLY_COMPILED:
        compile(example.code, str(example.path), "exec")
        return
    monkeypatch.chdir(tmp_path)
    await run(example, example.code)


@pytest.mark.parametrize("example", [e for e in ALL if e.owner in ON_A_STORE], ids=label)
async def test_an_example_runs_on_a_store(example: Example, shop: Schema) -> None:
    await run(example, on_store(example.code, shop))


def test_examples_have_the_right_types(tmp_path: Path) -> None:
    """Each one is a function of one program, after the program that all of them continue."""
    parts = [PROGRAM]
    for number, example in enumerate(ALL):
        place = public_module(example.path)
        own = ", ".join(import_module(place).__all__)
        parts.append(
            f"async def example_{number}() -> None:  # {label(example)}\n"
            f"    from {place} import {own}\n{textwrap.indent(example.code, '    ')}"
        )
    program = tmp_path / "examples_of_docstrings.py"
    program.write_text("\n".join(parts))
    result = check_types(program, without="import-untyped")
    if result.returncode != 0:
        lines = program.read_text().splitlines()
        shown = [
            f"{error}\n    {lines[int(error.split(':')[1]) - 1].strip()}"
            for error in result.stdout.splitlines()
            if ": error:" in error
        ]
        pytest.fail("\n".join(shown) or result.stdout)
