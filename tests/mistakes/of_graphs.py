"""Mistakes in the graph of a pipeline, its types and its tables."""

from __future__ import annotations

from tests.mistakes.entries import RUN, Failure, Mistake, Refusal
from tests.mistakes.programs import (
    ADD,
    FIELD,
    KEY,
    PIPELINE,
    PROGRAM,
    SINK,
    TABLE,
    WRITES,
)

BACK = (
    "class Back(Computation[Total, None]):",
    "    writes = (ORDERS,)",
    "",
    "    async def process_record(self, record, ctx):",
    "        pass",
)

ENTRIES: tuple[Mistake, ...] = (
    Refusal(
        17,
        "the graph has a cycle",
        ("a cycle: add_up → back → add_up", "Break it, for example by writing to a table instead"),
        changes=(
            (PIPELINE, "\n".join((*BACK, "", "", PIPELINE))),
            (SINK, f"{SINK}\npipeline.add(Back(), TOTALS.by(lambda total: total.customer))"),
        ),
    ),
    Failure(
        18,
        "two sinks write one table, with the same columns",
        (
            "table_of_several_streams",
            '"table": "totals"',
            '"orders", "totals"',
            "rows of these streams with one key replace each other, in no order",
            "a table for each stream",
        ),
        changes=(
            (
                SINK,
                f"{SINK}\npipeline.sink(ORDERS, {TABLE}, row=lambda o: Total(o.customer, o.cents))",
            ),
        ),
        code=0,
    ),
    Refusal(
        19,
        "two sinks write one table, with other columns",
        ("two different tables are called 'totals'", "rename one, or give both the same columns"),
        changes=((SINK, f'{SINK}\npipeline.sink(ORDERS, Table("totals", Order))'),),
    ),
    Failure(
        20,
        "the table exists with other columns",
        (
            "table 'totals', column 'pounds': a column that was made by hand",
            "unless the table has a trigger that sets one, Postgres refuses each row",
            "let column pounds of table wheel.totals be NULL, or have a default, by SQL",
            "failed on a record of stream 'totals', key 'ann'",
            "Postgres refused rows for table 'totals': null value in column",
        ),
        sql=("CREATE TABLE wheel.totals (customer text PRIMARY KEY, pounds bigint NOT NULL)",),
    ),
    Failure(
        21,
        "the table exists without its key",
        ("table wheel.totals has no unique index on (customer)", "create one"),
        sql=("CREATE TABLE wheel.totals (customer text, cents bigint)",),
        code=4,
    ),
    Refusal(
        22,
        "a column of a key is misspelt",
        ("Table('totals'): there is no column 'custmer' in Total", "Did you mean customer?"),
        changes=(('key=("customer",)', 'key=("custmer",)'),),
        at="custmer",
    ),
    Refusal(
        23,
        "the key of a table is a text",
        ("Table('totals'): give key and producer_key as tuples of column names",),
        changes=(('key=("customer",)', 'key=("customer")'),),
        at='key=("customer")',
    ),
    Refusal(
        39,
        "nothing reads a stream",
        ("'orders_injector' injects stream 'orders', but nothing reads it", "add a computation or"),
        changes=((ADD, ""), (SINK, "")),
    ),
    Refusal(
        40,
        "nothing writes a stream",
        ("'sink: totals' reads stream 'totals', but nothing writes it", "has it in `writes`"),
        changes=((ADD, "pipeline.sink(ORDERS, Table('orders', Order))"),),
    ),
    Failure(
        41,
        "a stream is not among `writes`",
        ("add_up produced to stream 'totals', which is not among its `writes` (other); declare",),
        changes=((WRITES, '    writes = (Stream("other", Total),)\n'), (SINK, "")),
        at="ctx.produce(",
    ),
    Refusal(
        42,
        "`writes` is without its comma",
        ("AddUp.writes must be a tuple of streams, as in writes = (OUT,), not Stream('totals'",),
        changes=((WRITES, "    writes = (TOTALS)\n"),),
        at="pipeline.add(",
    ),
    Failure(
        43,
        "`writes` is missing",
        ("add_up produced to stream 'totals', which is not among its `writes` (none); declare it",),
        changes=((WRITES, ""), (SINK, "")),
        at="ctx.produce(",
    ),
    Refusal(
        44,
        "a class is added twice",
        ("two nodes are called 'add_up'; give one another name=... in add or inject",),
        changes=((ADD, f"{ADD}\npipeline.add(AddUp(), ORDERS.by(lambda o: o.customer))"),),
        at="lambda o: o.customer",
    ),
    Refusal(
        45,
        "a type cannot be stored",
        (
            "stream 'totals': values of type Total cannot be stored as JSON",
            "Total.seen is of type complex",
            "Use a msgspec.Struct, a dataclass, or plain Python types",
        ),
        changes=((FIELD, f"{FIELD}    seen: complex = 0j\n"),),
        at="ORDERS, TOTALS =",
    ),
    Refusal(
        46,
        "a state has a field without a default",
        ("the state of add_up has no empty value", "'customer'", "Give each field a default"),
        changes=(('    customer: str = ""\n', "    customer: str\n"),),
        at="pipeline.add(",
    ),
    Refusal(
        47,
        "a sink is a text",
        ("sink of 'totals': 'totals' is not a sink; give an instance of Table,",),
        changes=((SINK, 'pipeline.sink(TOTALS, "totals")'),),
        at="pipeline.sink(",
    ),
    Refusal(
        48,
        "a value of on_error= is misspelt",
        (
            "'add_up': on_error must be 'fail', 'dead_letter', 'park' or Park(...), not 'dead-lett",
            "Did you mean dead_letter?",
        ),
        changes=((f"{KEY}))", f'{KEY}), on_error="dead-letter")'),),
        at="pipeline.add(",
    ),
    Refusal(
        49,
        "the name of a pipeline has capitals and a space",
        ("'My Shop' cannot name a pipeline: use lower-case letters, digits and underscores",),
        changes=(('Pipeline("wheel"', 'Pipeline("My Shop"'),),
        at="My Shop",
    ),
    Refusal(
        50,
        "the name of a stream has a space",
        ("'my orders' cannot name a stream: use lower-case letters, digits and underscores",),
        changes=(('Stream("orders"', 'Stream("my orders"'),),
        at="my orders",
    ),
    Refusal(
        51,
        "there is no pipeline in the module",
        ("module 'shop' has no 'pipeline'. Pipelines in this module: none",),
        changes=((PROGRAM[PROGRAM.index(PIPELINE) :], ""),),
    ),
    Failure(
        102,
        "a column has another type, and the lateness is changed",
        (
            "needs:",
            "table 'totals', column 'cents': another type of a column",
            "injector 'orders_injector', lateness_seconds",
            "write to a column of another name",
        ),
        changes=(
            (FIELD, "    cents: str = ''\n"),
            ("seconds=5", "seconds=7"),
            ("ctx.state.cents += order.cents", "ctx.state.cents += str(order.cents)"),
        ),
        first=(f"{RUN} --keep-open",),
        command="plan shop:pipeline",
        code=4,
    ),
)
