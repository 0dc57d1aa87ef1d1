"""Functions that run an event loop of their own say so in a notebook, where one runs already."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import pytest

from millwheel import Pipeline
from millwheel.core.own_loop import run_to_end
from millwheel.errors import UsageError
from millwheel.services.loop import run
from millwheel.services.planning import plan, roll_back
from tests.support.pipelines import Tally, script
from tests.support.product import ROOT, product_files
from tests.support.values import ITEMS, key_of, time_of

IN_THREADS_OF_THEIR_OWN = {
    "millwheel/services/http_server.py",  # the thread of the HTTP server
    "millwheel/spark/engine/input.py",  # a process of Spark
    "millwheel/spark/engine/operator.py",  # a process of Spark
}


def pipeline() -> Pipeline:
    made = Pipeline("own_loop")
    made.inject(ITEMS, script(ITEMS, []), timestamp=time_of)
    made.add(Tally(), ITEMS.by(key_of))
    return made


async def work() -> int:
    return 1


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("plan", lambda: plan(pipeline(), "postgresql://nowhere/x")),
        ("roll_back", lambda: roll_back(pipeline(), "postgresql://nowhere/x")),
        ("work", lambda: run(work())),
    ],
)
async def test_a_function_that_needs_a_loop_names_the_remedy(
    name: str, call: Callable[[], object]
) -> None:
    with pytest.raises(UsageError) as caught:
        call()
    assert str(caught.value).startswith(f"{name} needs an event loop of its own")
    assert "await asyncio.to_thread(" in str(caught.value)


async def test_the_remedy_works() -> None:
    assert await asyncio.to_thread(lambda: run_to_end(work())) == 1


def test_no_other_place_runs_a_loop() -> None:
    """A new `asyncio.run` would end in a notebook with an error that names no remedy."""
    starts = re.compile(r"\basyncio\.(?:run|Runner|new_event_loop)\(|\brun_until_complete\(")
    found = {
        path.relative_to(ROOT).as_posix()
        for path in product_files()
        if starts.search(re.sub(r'"""(?:.|\n)*?"""', "", path.read_text("utf-8")))
    }
    own = {"millwheel/core/own_loop.py", "millwheel/services/loop.py"}
    assert found - {"millwheel/testing/virtual_loop.py"} == own | IN_THREADS_OF_THEIR_OWN
