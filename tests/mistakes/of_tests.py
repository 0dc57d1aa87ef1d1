"""Mistakes in tests that use the kit."""

from __future__ import annotations

from tests.mistakes.entries import InTest, Mistake

ENTRIES: tuple[Mistake, ...] = (
    InTest(
        99,
        "no such table",
        ("pipeline 'wheel' has no table 'totl'; it has: totals. Did you mean totals?",),
        statement='harness.rows("totl")',
    ),
    InTest(
        100,
        "no such computation",
        ("pipeline 'wheel' has no computation 'ad_up'; it has: ", "Did you mean add_up?"),
        statement='harness.state("ad_up", "ann")',
    ),
    InTest(
        110,
        "a stream that the pipeline does not read",
        ("no injector of pipeline 'wheel' writes stream 'order'", "Did you mean orders?"),
        statement='await harness.inject(Stream("order", int), 3)',
    ),
    InTest(
        110,
        "a stream that the pipeline does not write",
        ("no computation of pipeline 'wheel' writes stream 'total'", "Did you mean totals?"),
        statement='harness.produced(Stream("total", int))',
    ),
    InTest(
        110,
        "a value of another type",
        ("stream 'orders': 3 is not a value of type Order: Expected `object`, got `int`",),
        statement="await harness.inject(ORDERS, 3)",
        code=6,
    ),
    InTest(
        110,
        "a duration where seconds are taken",
        ("sleep(datetime.timedelta(seconds=3)): give a number of seconds, such as 60 or 0.5",),
        statement="await harness.sleep(timedelta(seconds=3))",
    ),
)
