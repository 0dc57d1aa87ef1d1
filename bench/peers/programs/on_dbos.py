"""The payments in DBOS: a workflow per payment, with one step, a transaction on the balance.

DBOS documentation, "Transactions & Datasources": a datasource's transaction commits its result
together with the rows that it writes, so its effect happens once, and an interrupted workflow
resumes where it was. A record is done when its workflow is: input, output and effect are in
Postgres, on the same server as millwheel's. The workflow's id is that of the record, so a repeated
record is dropped. There is no batching: each workflow becomes durable separately.

`async`: many workflows at a time as coroutines ("Workflows", "Coroutine (Async) Workflows").
`queue`: enqueued, and run from the queue by this process ("Queues & Concurrency"), as many at a
time. `default`: called as functions, one after the other, as at the start of the tutorial.
"""

import asyncio
from itertools import islice

import marks
import sqlalchemy as sa
from dbos import DBOS, AsyncSQLAlchemyDatasource, SetWorkflowID, SQLAlchemyDatasource

AT_A_TIME = 64
CONNECTIONS = 20
SCHEMA = """
DROP SCHEMA IF EXISTS peers_dbos CASCADE;
DROP SCHEMA IF EXISTS dbos CASCADE;
CREATE SCHEMA peers_dbos;
CREATE TABLE peers_dbos.balance (account integer PRIMARY KEY, payments bigint, total bigint);
"""
ADD = sa.text(
    "INSERT INTO peers_dbos.balance AS b VALUES (:account, 1, :amount) ON CONFLICT (account) DO "
    "UPDATE SET payments = b.payments + 1, total = b.total + excluded.total RETURNING payments, "
    "total"
)


def balance(payment, row):
    """Build the output for a payment."""
    return {"account": payment["account"], "payments": row.payments, "total": row.total}


def configure(options):
    """Set up DBOS and the schema; return the URL of its datasource."""
    url = sa.make_url(options.url).set(drivername="postgresql+psycopg")
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in filter(str.strip, SCHEMA.split(";")):
            connection.execute(sa.text(statement))
    engine.dispose()
    text = url.render_as_string(hide_password=False)
    DBOS(
        config={
            "name": "payments",
            "system_database_url": text,
            "sys_db_pool_size": CONNECTIONS,
            "log_level": "ERROR",
        }
    )
    return text


def one_by_one(options, url):
    """Call the workflow of each payment as a function; return the balances."""
    datasource = SQLAlchemyDatasource.create(url)

    @datasource.transaction
    def add(payment):
        return balance(payment, datasource.sql_session().execute(ADD, payment).one())

    @DBOS.workflow()
    def pay(payment):
        return add(payment)

    DBOS.launch()
    balances = []
    for number, payment in enumerate(payments(options)):
        if number == options.warm:
            marks.begin(options.warm)
        with SetWorkflowID(f"payment-{number}"):
            balances.append(pay(payment))
    return balances


async def many(options, url, *, queued):
    """Run many workflows at a time, started or enqueued; return the balances."""
    datasource = await AsyncSQLAlchemyDatasource.create(
        url, engine_kwargs={"pool_size": CONNECTIONS}
    )

    @datasource.transaction
    async def add(payment):
        return balance(payment, (await datasource.sql_session().execute(ADD, payment)).one())

    @DBOS.workflow()
    async def pay(payment):
        return await add(payment)

    DBOS.launch()
    if queued:
        queue = await DBOS.register_queue_async(
            "payments", worker_concurrency=AT_A_TIME, polling_interval_sec=0.1
        )
    room = asyncio.Semaphore(AT_A_TIME)

    async def one(number, payment):
        async with room:
            with SetWorkflowID(f"payment-{number}"):
                if queued:
                    handle = await queue.enqueue_async(pay, payment)
                    return await handle.get_result(polling_interval_sec=0.05)
                return await pay(payment)

    found = list(enumerate(payments(options)))
    warm = await asyncio.gather(*(one(*item) for item in found[: options.warm]))
    marks.begin(options.warm)
    return warm + await asyncio.gather(*(one(*item) for item in found[options.warm :]))


def payments(options):
    """Yield the requested number of payments."""
    for payment in islice(marks.payments(options.input), options.records):
        yield {"account": payment["account"], "amount": payment["amount"]}


def main():
    options = marks.options()
    url = configure(options)
    if options.setting == "default":
        balances = one_by_one(options, url)
    else:
        balances = asyncio.run(many(options, url, queued=options.setting == "queue"))
    marks.end()
    marks.write_answers(options.out / "balances.jsonl", balances)
    DBOS.destroy()


if __name__ == "__main__":
    main()
